//! Reads addresses: sockets, networks, hosts, origins, URLs and paths.

use std::net::SocketAddr;

use url::{Host, Url};

use super::{StringFormat, ValueError};
use crate::server::forwarded::{AddressRange, AddressRangeError};
use crate::server::tokens::is_trustworthy;

formats! {
    ADDRESS: SocketAddr = address, "an IP address with a port, such as \"127.0.0.1:8080\"";
    ADDRESS_RANGE: AddressRange = address_range, "an address or a network such as \"10.0.0.0/8\"";
    /// A host as in a `Host` header, without port; converted to lower case.
    HOST: String = host, "a host name without scheme and port";
    /// An origin; converted to `scheme://host[:port]`, without the scheme's default port.
    ORIGIN: String = origin, "an origin such as \"https://app.example\"";
    PUBLIC_URL: Url = public_url, "a URL such as \"https://mcp.example\", without a path";
    UPSTREAM_URL: Url = upstream_url, "a URL such as \"http://127.0.0.1:9000/mcp\"";
    /// The proxy to an upstream; `None` is "none".
    PROXY: Option<Url> = proxy, "\"none\", or a URL such as \"http://proxy.example:3128\"";
    SERVED_PATH: String = served_path, "a path such as \"/reports/mcp\"";
    /// The issuer of tokens, as written: a token names it byte for byte.
    ISSUER: String = issuer, "a URL such as \"https://login.example\"";
    TRUSTED_URL: Url = trusted_url, "a URL such as \"https://login.example/keys\"";
    TOKEN_URL: Url = token_url, "a URL such as \"https://login.example/token\"";
    INTROSPECTION_URL: Url = token_url, "a URL such as \"https://login.example/introspect\"";
    RESOURCE: String = resource, "a URI such as \"https://reports.internal/mcp\"";
}

fn address(text: &str) -> Result<SocketAddr, ValueError> {
    text.parse().map_err(|_| ValueError::Form)
}

fn address_range(text: &str) -> Result<AddressRange, ValueError> {
    AddressRange::parse(text).map_err(|error| match error {
        AddressRangeError::Form => ValueError::Form,
        AddressRangeError::Length => {
            ValueError::Because("has a longer prefix than its address: at most /32 for IPv4, and /128 for IPv6")
        }
        AddressRangeError::NotFirst => {
            ValueError::Because("has bits behind its prefix; write the first address of the network")
        }
    })
}

fn host(text: &str) -> Result<String, ValueError> {
    if text.contains('*') {
        return Err(ValueError::Because("has no wildcards; name each host"));
    }
    Host::parse(text).map(|host| host.to_string()).map_err(|_| ValueError::Form)
}

fn origin(text: &str) -> Result<String, ValueError> {
    if text.contains('*') {
        return Err(ValueError::Because("has no wildcards; name each origin"));
    }
    let url = Url::parse(text).map_err(|_| ValueError::Form)?;
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or(ValueError::Form)?;
    let more = !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some();
    if more || has_user_info(&url) {
        return Err(ValueError::Because("has more than scheme, host and port; leave the rest out"));
    }
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    Ok(format!("{}://{host}{port}", url.scheme()))
}

fn public_url(text: &str) -> Result<Url, ValueError> {
    if text.contains('*') {
        return Err(ValueError::Because("has no wildcards; write the one name that clients use"));
    }
    let url = Url::parse(&origin(text)?).map_err(|_| ValueError::Form)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(ValueError::Because("has another scheme than http and https"));
    }
    Ok(url)
}

fn upstream_url(text: &str) -> Result<Url, ValueError> {
    let url = Url::parse(text).ok().filter(|_| text.contains("://")).ok_or(ValueError::Form)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(ValueError::Because("has another scheme than http and https"));
    }
    if has_user_info(&url) {
        return Err(ValueError::Because("has a user name or password; credentials do not belong into a URL"));
    }
    if url.fragment().is_some() {
        return Err(ValueError::Because("has a fragment; leave out the # and the rest"));
    }
    Ok(url)
}

fn proxy(text: &str) -> Result<Option<Url>, ValueError> {
    if text == "none" {
        return Ok(None);
    }
    let url = Url::parse(text).map_err(|_| ValueError::Form)?;
    if url.scheme() != "http" {
        return Err(ValueError::Because("has another scheme than http; the gateway reaches a proxy over http"));
    }
    if has_user_info(&url) {
        return Err(ValueError::Because("has a user name or password; write them into `proxy_credentials_file`"));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(ValueError::Because("has more than scheme, host and port; leave the rest out"));
    }
    Ok(Some(url))
}

/// Only paths that every client and proxy reads alike: a path that could be normalised is refused.
fn served_path(text: &str) -> Result<String, ValueError> {
    let Some(rest) = text.strip_prefix('/') else { return Err(ValueError::Because("must begin with /")) };
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte)) {
        return Err(ValueError::Because("may only have letters, digits and / - . _ ~"));
    }
    if rest.is_empty() {
        return Ok(text.to_owned());
    }
    for segment in rest.split('/') {
        match segment {
            "" => return Err(ValueError::Because("has an empty segment; write each / once, and none at the end")),
            "." | ".." => return Err(ValueError::Because("has a segment . or .., which clients resolve on their own")),
            _ => (),
        }
    }
    Ok(text.to_owned())
}

fn issuer(text: &str) -> Result<String, ValueError> {
    let url = trusted_url(text)?;
    match url.query() {
        Some(_) => Err(ValueError::Because("has a query; write the issuer as its tokens name it")),
        None => Ok(text.to_owned()),
    }
}

fn trusted_url(text: &str) -> Result<Url, ValueError> {
    trusted(text, "begins with http://, where others could replace its keys; write https://")
}

fn token_url(text: &str) -> Result<Url, ValueError> {
    trusted(text, "begins with http://, where others could read its tokens; write https://")
}

fn trusted(text: &str, otherwise: &'static str) -> Result<Url, ValueError> {
    let url = upstream_url(text)?;
    if is_trustworthy(&url) { Ok(url) } else { Err(ValueError::Because(otherwise)) }
}

fn resource(text: &str) -> Result<String, ValueError> {
    let is_absolute = Url::parse(text).is_ok_and(|url| url.fragment().is_none());
    if is_absolute && !text.contains(char::is_whitespace) { Ok(text.to_owned()) } else { Err(ValueError::Form) }
}

fn has_user_info(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::value::tests::{because, check};

    #[test]
    fn hosts_and_origins_come_out_as_headers_are_compared() {
        let wildcard = "has no wildcards; name each host";
        check(
            HOST,
            &[
                ("MCP.Example", Ok("mcp.example".to_owned())),
                ("10.0.0.1", Ok("10.0.0.1".to_owned())),
                ("[::1]", Ok("[::1]".to_owned())),
                ("mcp.example:80", Err(ValueError::Form)),
                ("http://mcp.example", Err(ValueError::Form)),
                ("", Err(ValueError::Form)),
                ("*.example", because(wildcard)),
            ],
        );
        let more = "has more than scheme, host and port; leave the rest out";
        check(
            ORIGIN,
            &[
                ("https://App.Example", Ok("https://app.example".to_owned())),
                ("https://app.example:443/", Ok("https://app.example".to_owned())),
                ("http://app.example:8000", Ok("http://app.example:8000".to_owned())),
                ("vscode-webview://abc", Ok("vscode-webview://abc".to_owned())),
                ("https://app.example/x", because(more)),
                ("https://app.example?x", because(more)),
                ("https://me@app.example", because(more)),
                ("https://*.example", because("has no wildcards; name each origin")),
                ("null", Err(ValueError::Form)),
                ("data:x", Err(ValueError::Form)),
            ],
        );
    }

    #[test]
    fn a_public_url_is_a_scheme_a_host_and_a_port() {
        let more = "has more than scheme, host and port; leave the rest out";
        for (text, read) in [
            ("https://MCP.example/", Ok("https://mcp.example/")),
            ("http://10.0.0.7:8080", Ok("http://10.0.0.7:8080/")),
            ("https://[2001:db8::1]:443", Ok("https://[2001:db8::1]/")),
            ("https://mcp.example/mcp", because(more)),
            ("https://mcp.example?x", because(more)),
            ("https://mcp.example/#x", because(more)),
            ("https://ada:secret@mcp.example", because(more)),
            ("ftp://mcp.example", because("has another scheme than http and https")),
            ("https://*.example", because("has no wildcards; write the one name that clients use")),
            ("mcp.example", Err(ValueError::Form)),
            ("mcp.example:443", Err(ValueError::Form)),
            ("https://", Err(ValueError::Form)),
            ("", Err(ValueError::Form)),
        ] {
            assert_eq!((PUBLIC_URL.read)(text), read.map(|url| Url::parse(url).unwrap()), "{text:?}");
        }
    }

    #[test]
    fn upstream_urls_carry_no_credentials_and_no_fragment() {
        for (text, wrong) in [
            ("http://127.0.0.1:9000/mcp", None),
            ("https://mcp.example/a?b=c", None),
            ("ftp://mcp.example", Some(ValueError::Because("has another scheme than http and https"))),
            ("mcp.example", Some(ValueError::Form)),
            ("http://", Some(ValueError::Form)),
            (
                "http://a:b@c/",
                Some(ValueError::Because("has a user name or password; credentials do not belong into a URL")),
            ),
            ("http://c/#d", Some(ValueError::Because("has a fragment; leave out the # and the rest"))),
        ] {
            assert_eq!((UPSTREAM_URL.read)(text).err(), wrong, "{text:?}");
        }
    }

    #[test]
    fn served_paths_are_read_alike_by_everyone() {
        let characters = "may only have letters, digits and / - . _ ~";
        let empty = "has an empty segment; write each / once, and none at the end";
        let dots = "has a segment . or .., which clients resolve on their own";
        check(
            SERVED_PATH,
            &[
                ("/", Ok("/".to_owned())),
                ("/reports/mcp", Ok("/reports/mcp".to_owned())),
                ("/v1.2/a_b-c~d", Ok("/v1.2/a_b-c~d".to_owned())),
                ("reports", because("must begin with /")),
                ("", because("must begin with /")),
                ("/a//b", because(empty)),
                ("//", because(empty)),
                ("/a/", because(empty)),
                ("/a/../b", because(dots)),
                ("/.", because(dots)),
                ("/a%2fb", because(characters)),
                ("/a;b", because(characters)),
                ("/a?b", because(characters)),
                ("/ü", because(characters)),
            ],
        );
    }
}
