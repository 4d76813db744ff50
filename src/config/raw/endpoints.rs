//! Declares the keys of `[[endpoints]]`: paths that serve several upstreams.

use super::super::keys::keys;
use super::super::value::{SERVED_PATH, UPSTREAM_NAME, WordList};
use crate::face::combined::PrefixPolicy;

const PREFIXES: WordList<PrefixPolicy> = &[("always", Some(PrefixPolicy::Always)), ("auto", Some(PrefixPolicy::Auto))];

keys! {
    /// `[[endpoints]]`
    struct RawEndpointValues {
        /// Where the endpoint is served. No two upstreams or endpoints have the same path.
        reload path: String = require(&SERVED_PATH);
        /// Where the endpoint is served to clients of HTTP+SSE.
        reload sse_path: String = read(&SERVED_PATH), shown "the path with sse for mcp at its end";
        /// The served upstreams. If two list the same resource, it belongs to the first.
        reload upstreams: Vec<String> = read_all(&UPSTREAM_NAME), bounds "1 to 64";
        /// Which tools and prompts get their upstream's name as a prefix (`reports__generate`): all, or only names that
        /// two upstreams have.
        reload prefix: PrefixPolicy = word(PREFIXES), default "always";
    }
}
