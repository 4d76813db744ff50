//! Keeps binary data in results off the terminal: describes it, or writes it to files.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::value::RawValue;

use crate::wire::{Object, Payload};

/// Padding is often missing.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
const FILES_MAX: u32 = 100_000;

#[derive(Debug)]
pub(super) struct Media {
    pub(super) kind: String,
    mime_type: String,
    /// Base64.
    data: String,
}

impl Media {
    pub(super) fn of(block: &Object) -> Option<Self> {
        let kind = block.get_string("type")?;
        let (holder, data) = match kind.as_str() {
            "image" | "audio" => (block.clone(), block.get_string("data")?),
            "resource" => {
                let resource = block.get_object("resource")?;
                let data = resource.get_string("blob")?;
                (resource, data)
            }
            _ => return None,
        };
        Some(Self { kind, mime_type: holder.get_lossy("mimeType").unwrap_or_default(), data })
    }

    pub(super) fn words(&self) -> String {
        let digits = self.data.trim_end_matches('=').len();
        format!("[{}, {}, {} bytes; --out DIR writes it to a file]", self.kind, self.mime_type, digits * 3 / 4)
    }

    fn extension(&self) -> &'static str {
        let mime_type = self.mime_type.split(';').next().unwrap_or_default().trim();
        match mime_type {
            "image/png" => "png",
            "image/jpeg" => "jpg",
            "image/gif" => "gif",
            "image/webp" => "webp",
            "image/svg+xml" => "svg",
            "audio/wav" | "audio/x-wav" | "audio/wave" => "wav",
            "audio/mpeg" | "audio/mp3" => "mp3",
            "audio/ogg" => "ogg",
            "audio/flac" => "flac",
            "application/pdf" => "pdf",
            "application/zip" => "zip",
            _ => "bin",
        }
    }
}

/// A result with its binary data replaced by the texts of `words`, if any.
pub(super) fn replaced(result: &Object, words: &mut dyn FnMut(&Media) -> Option<String>) -> Payload {
    let Some(content) = result.get("content").filter(|content| content.as_str().starts_with('[')) else {
        return result.payload().clone();
    };
    let mut block = |block: Payload| {
        let without = Object::of(&block).and_then(|object| {
            let said = Payload::text(&words(&Media::of(&object)?)?);
            Some(match object.get_object("resource") {
                Some(resource) => object.edit().set("resource", resource.edit().set("blob", said).finish()).finish(),
                None => object.edit().set("data", said).finish(),
            })
        });
        without.unwrap_or(block)
    };
    let blocks: Vec<Box<RawValue>> = content.items().filter_map(|item| block(item).read().ok()).collect();
    result.edit().set("content", Payload::of(&blocks)).finish()
}

#[derive(Clone, Debug)]
pub struct MediaFolder {
    path: PathBuf,
    stem: String,
}

impl MediaFolder {
    /// Opens a writable folder; creates it if missing.
    pub fn open(path: &Path, stem: &str) -> Result<Self, String> {
        let of = |what: &str| format!("--out {}: {what}", path.display());
        fs::create_dir_all(path).map_err(|error| {
            let is_file = [io::ErrorKind::AlreadyExists, io::ErrorKind::NotADirectory].contains(&error.kind());
            let what = format!("the folder cannot be made: {error}");
            of(if is_file { "this is a file; name a folder" } else { &what })
        })?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let stem = stem.chars().map(|c| if is_plain(c) { c } else { '-' }).take(64).collect();
        let folder = Self { path: path.to_owned(), stem };
        // An error before the call is better than one after it.
        let (file, _) = folder.create("tmp").map_err(|error| of(&format!("it cannot be written to: {error}")))?;
        let _ = fs::remove_file(file);
        Ok(folder)
    }

    pub(super) fn save(&self, media: &Media) -> Result<PathBuf, String> {
        let bytes = BASE64.decode(&media.data).map_err(|_| "its data is not base64".to_owned())?;
        let (path, mut file) = self.create(media.extension()).map_err(|error| error.to_string())?;
        file.write_all(&bytes).map_err(|error| {
            let _ = fs::remove_file(&path);
            format!("{}: {error}", path.display())
        })?;
        Ok(path)
    }

    /// A new file: an existing one is never overwritten.
    fn create(&self, extension: &str) -> io::Result<(PathBuf, fs::File)> {
        for number in 1..FILES_MAX {
            let path = self.path.join(format!("{}-{number}.{extension}", self.stem));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (),
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("it has too many files of this name"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: &serde_json::Value) -> Object {
        Object::of(&Payload::of(value)).unwrap()
    }

    #[test]
    fn binary_content_is_distinguished_from_text() {
        let png = json!({ "type": "image", "mimeType": "image/png", "data": "aGk=" });
        let blob = json!({ "type": "resource", "resource": { "uri": "a:b", "blob": "aGk" } });
        let text = json!({ "type": "text", "text": "aGk=" });
        let read = json!({ "type": "resource", "resource": { "uri": "a:b", "text": "hi" } });
        let words = |block| Media::of(&object(block)).map(|media| media.words());
        assert_eq!(words(&png).unwrap(), "[image, image/png, 2 bytes; --out DIR writes it to a file]");
        assert_eq!(words(&blob).unwrap(), "[resource, , 2 bytes; --out DIR writes it to a file]");
        assert_eq!([words(&text), words(&read)], [None, None]);
        let result = object(&json!({ "content": [png, text, blob], "isError": false }));
        let shown = replaced(&result, &mut |media| Some(media.kind.clone()));
        let shown: serde_json::Value = shown.read().unwrap();
        assert_eq!([&shown["content"][0]["data"], &shown["content"][2]["resource"]["blob"]], ["image", "resource"]);
        assert_eq!(shown["content"][1], text);
        assert_eq!(replaced(&result, &mut |_| None).as_str().len(), result.payload().as_str().len());
    }

    #[test]
    fn each_gets_a_file_of_its_own_and_nothing_is_overwritten() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = MediaFolder::open(&scratch.path().join("a/b"), "../grüße").unwrap();
        let media = |data: &str, mime: &str| Media {
            kind: "image".to_owned(),
            mime_type: mime.to_owned(),
            data: data.to_owned(),
        };
        let saved = |media| folder.save(&media).map(|path| path.file_name().unwrap().to_owned());
        assert_eq!(saved(media("aGk=", "image/png; a=b")).unwrap(), "---gr--e-1.png");
        assert_eq!(saved(media("aGk", "image/png")).unwrap(), "---gr--e-2.png");
        assert_eq!(saved(media("", "x/y")).unwrap(), "---gr--e-1.bin");
        assert_eq!(saved(media("?", "image/png")).unwrap_err(), "its data is not base64");
        assert_eq!(fs::read(scratch.path().join("a/b/---gr--e-2.png")).unwrap(), b"hi");
        assert_eq!(fs::read_dir(scratch.path().join("a/b")).unwrap().count(), 3);
        let file = scratch.path().join("f");
        fs::write(&file, "").unwrap();
        for wrong in [&file, &file.join("below")] {
            let why = MediaFolder::open(wrong, "x").unwrap_err();
            assert_eq!(why, format!("--out {}: this is a file; name a folder", wrong.display()));
        }
    }
}
