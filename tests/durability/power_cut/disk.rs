//! A disk that keeps all synced bytes, and any part of the others.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::Dice;
use super::trace::Event;

/// The size of an atomic write.
const SECTOR: usize = 512;

#[derive(Clone, Debug, Default)]
struct File {
    /// The bytes that are synced.
    kept: Vec<u8>,
    /// The writes since the last sync.
    pending: Vec<Pending>,
    /// Whether its name is synced.
    is_named: bool,
}

#[derive(Clone, Debug)]
enum Pending {
    Sector { at: usize, bytes: Vec<u8> },
    Cut { len: usize },
}

impl Pending {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Sector { at, bytes } => {
                if content.len() < at + bytes.len() {
                    content.resize(at + bytes.len(), 0);
                }
                content[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Self::Cut { len } => content.resize(*len, 0),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Disk {
    files: BTreeMap<String, File>,
    /// Removed, but not for certain.
    ghosts: BTreeMap<String, File>,
}

impl Disk {
    pub(crate) fn happen(&mut self, event: &Event) {
        match event {
            Event::Wrote { file, at, bytes } => {
                let mut at = *at;
                let mut rest = &bytes[..];
                let pending = &mut self.files.entry(file.clone()).or_default().pending;
                while !rest.is_empty() {
                    let len = rest.len().min(SECTOR - at % SECTOR);
                    let (sector, after) = rest.split_at(len);
                    pending.push(Pending::Sector { at, bytes: sector.to_vec() });
                    at += len;
                    rest = after;
                }
            }
            Event::Cut { file, len } => {
                self.files.entry(file.clone()).or_default().pending.push(Pending::Cut { len: *len });
            }
            Event::Removed { file } => {
                if let Some(removed) = self.files.remove(file) {
                    self.ghosts.insert(file.clone(), removed);
                }
            }
            Event::Synced { file } => {
                let file = self.files.entry(file.clone()).or_default();
                for pending in std::mem::take(&mut file.pending) {
                    pending.apply(&mut file.kept);
                }
            }
            Event::SyncedNames => {
                self.ghosts.clear();
                for file in self.files.values_mut() {
                    file.is_named = true;
                }
            }
            Event::Printed(_) | Event::SyncedAbove(_) => (),
        }
    }

    /// One of the many states that a power cut could leave now.
    pub(crate) fn image(&self, folder: &Path, dice: &mut Dice) {
        fs::create_dir_all(folder).unwrap();
        // From nothing that is not certain to all of it: both ends are states of their own.
        let of_eight = dice.below(9);
        let mut happens = |dice: &mut Dice| dice.below(8) < of_eight;
        let ghosts = self.ghosts.iter().filter(|(name, _)| !self.files.contains_key(*name));
        for (name, file) in ghosts {
            if !happens(dice) {
                put(folder, name, file, &mut happens, dice);
            }
        }
        for (name, file) in &self.files {
            if file.is_named || happens(dice) {
                put(folder, name, file, &mut happens, dice);
            }
        }
    }
}

fn put(folder: &Path, name: &str, file: &File, happens: &mut dyn FnMut(&mut Dice) -> bool, dice: &mut Dice) {
    let mut content = file.kept.clone();
    for pending in &file.pending {
        if happens(dice) {
            pending.apply(&mut content);
        }
    }
    fs::write(folder.join(name), content).unwrap();
}
