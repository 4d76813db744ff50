//! Reads server headers of a command line.

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};

use super::value::{CREDENTIAL_HEADER, SECRET};

const HEADERS_MAX: usize = 32;

/// Parses `NAME: VALUE` for each header of requests to a server; `has_key` tells whether a bearer token is sent, too.
/// Values are treated as secrets; errors do not repeat the header.
pub fn server_headers(texts: &[String], has_key: bool) -> Result<Vec<(HeaderName, HeaderValue)>, &'static str> {
    if texts.len() > HEADERS_MAX {
        return Err("there are more than 32 headers");
    }
    let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(texts.len());
    for text in texts {
        let (name, value) = text.split_once(':').ok_or("write 'NAME: VALUE', such as 'X-Tenant: acme'")?;
        let name = (CREDENTIAL_HEADER.read)(name).map_err(|_| {
            "the name is not allowed: it is no header name, or belongs to a connection or to MCP"
        })?;
        let value =
            (SECRET.read)(value).map_err(|_| "the value is invalid; write one line of visible ASCII, at most 8KiB")?;
        if has_key && name == AUTHORIZATION {
            return Err("Authorization is the header of the key, too; leave one of them out");
        }
        if headers.iter().any(|(other, _)| *other == name) {
            return Err("one name is written twice; a server gets each header once");
        }
        headers.push((name, value));
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_command_line_are_names_with_values_and_none_that_means_something_else() {
        let read = |texts: &[&str], has_key| {
            let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
            server_headers(&texts, has_key)
        };
        let fine = read(&["X-Tenant: acme", "authorization:Bearer s3cr3t", "X-Url: http://a:1/b"], false).unwrap();
        let shown: Vec<_> = fine.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap())).collect();
        assert_eq!(shown, ["x-tenant=acme", "authorization=Bearer s3cr3t", "x-url=http://a:1/b"]);
        assert!(!format!("{fine:?}").contains("s3cr3t"));
        let many: Vec<_> = (0..33).map(|n| format!("x-{n}: s3cr3t")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        for (texts, has_key, expected) in [
            (&["X-Tenant"][..], false, "write 'NAME: VALUE'"),
            (&[""], false, "write 'NAME: VALUE'"),
            (&[": s3cr3t"], false, "the name"),
            (&["a b: s3cr3t"], false, "the name"),
            (&["n\u{e4}me: s3cr3t"], false, "the name"),
            (&["X-A\r\nX-B: s3cr3t"], false, "the name"),
            (&["X-A:"], false, "the value"),
            (&["X-A: s3cr3t\r\nX-B: 1"], false, "the value"),
            (&["X-A: s3cr3t\0"], false, "the value"),
            (&["X-A: caf\u{e9}"], false, "the value"),
            (&["Connection: close"], false, "the name"),
            (&["Host: evil.example"], false, "the name"),
            (&["Content-Length: 1"], false, "the name"),
            (&["Transfer-Encoding: chunked"], false, "the name"),
            (&["TE: trailers"], false, "the name"),
            (&["Mcp-Session-Id: s3cr3t"], false, "the name"),
            (&["MCP-Protocol-Version: 2025-11-25"], false, "the name"),
            (&["Accept: text/html"], false, "the name"),
            (&["Last-Event-ID: 1"], false, "the name"),
            (&["X-A: 1", "x-a: 2"], false, "written twice"),
            (&["Authorization: Bearer s3cr3t"], true, "the header of the key"),
            (&many, false, "more than 32"),
        ] {
            let why = read(texts, has_key).unwrap_err();
            assert!(why.contains(expected), "{texts:?}: {why}");
            assert!(!why.contains("s3cr3t"), "{why}");
        }
        let long = format!("X-A: {}", "x".repeat(8 * 1024 + 1));
        assert!(read(&[&long], false).unwrap_err().contains("the value"));
    }
}
