//! Declares the keys of `[auth]` and of further files of keys.

use std::path::PathBuf;
use std::time::Duration;

use jsonwebtoken::Algorithm;
use url::Url;

use super::super::error::ConfigLocation;
use super::super::keys::{KeyTable as _, keys};
use super::super::section::{ListOrTable, LocatedValue, NamedLists, Section};
use super::super::value::{
    ALGORITHM, API_KEY, API_KEY_DIGEST, ARGUMENT_PATTERN, AUDIENCE, CALLER_ID, CERTIFICATE_NAME, CLAIM,
    DURATION_NOT_ZERO, EXPIRY, GROUP, GROUP_MEMBER, INTROSPECTION_URL, ISSUER, KEY_FILE, KEY_SET_FILE, KEYS_FILE,
    PATTERN, PRINCIPAL_ID, PROMPT_PATTERN, RESOURCE_PATTERN, SAME_PRINCIPAL, SCOPE, TOKEN_ISSUER, TOKEN_TYPE,
    TRUSTED_URL, UPSTREAM_NAME, UPSTREAM_PATTERN, WordList,
};
use super::{RawClientTable, RawPrincipalLimits, read_client, read_table};
use crate::server::api_keys::ApiKey;
use crate::server::client_certificates::CertificatePattern;
use crate::server::tokens::settings::{IntrospectedTokens, ProofPolicy};
use crate::task::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum AuthMode {
    None,
    ApiKeys,
    Tokens,
    Certificates,
}

const INTROSPECTED: WordList<IntrospectedTokens> =
    &[("opaque", IntrospectedTokens::Opaque), ("signed", IntrospectedTokens::Signed), ("all", IntrospectedTokens::All)];
const MODES: WordList<AuthMode> = &[
    ("none", AuthMode::None),
    ("api_keys", AuthMode::ApiKeys),
    ("tokens", AuthMode::Tokens),
    ("certificates", AuthMode::Certificates),
];

const PROOFS: WordList<ProofPolicy> =
    &[("off", ProofPolicy::Off), ("accept", ProofPolicy::Accept), ("require", ProofPolicy::Require)];

keys! {
    struct RawAuth {
        /// `"none"`: no credentials. All clients on loopback are one principal (`local`); requests through a proxy (a
        /// `Host` other than loopback, `Forwarded`, `Via`, `X-Real-IP`, `X-Forwarded-*`) are served as with
        /// `anonymous`. `"api_keys"`: each request needs one of the keys below, as `Authorization: Bearer KEY` or as
        /// `X-Taskgate-Key: KEY`. `"tokens"`: each needs an [access token](docs/login.md) of one of the issuers below, as
        /// `Authorization: Bearer TOKEN`. `"certificates"`: each needs a connection with a
        /// [certificate](docs/login.md#client-certificates) of `listen.tls.client_ca` with a name below. A list accepts several
        /// kinds: `["tokens", "api_keys"]`.
        reload mode: Vec<AuthMode> = words(MODES), default "none";
        /// `true`: serve every client that reaches the address. A task's id is then enough to read the task, so `ttl`,
        /// `ttl_max` and `keep_result_min` are at most 1 h, and the first two default to 1 h.
        reload anonymous: bool = flag(), default false;
        /// Further files of `[[auth.api_keys]]` blocks and nothing else, relative to the folder of this file. Each must
        /// be readable by its owner alone (mode 0600) and is read again when it changes. Mistakes are reported with
        /// that file and its lines.
        reload api_key_files: Vec<LocatedValue<PathBuf>> = read_each(&KEYS_FILE), default [];
        /// With `"tokens"`: scopes that every request's token needs. Clients ask for them at their login.
        reload scopes: Vec<LocatedValue<String>> = read_each(&SCOPE), default [];
        /// With `"tokens"`: tokens that are bound to a key of their client ([DPoP](docs/login.md#dpop)). `"accept"`: each
        /// request with a bound token needs a proof, and other tokens are accepted as before. `"require"`: every token must
        /// be bound. `"off"`: a bound token is refused.
        reload dpop: ProofPolicy = word(PROOFS), default "off";
        /// Groups for rules: for each name, principals (`key:ada`, `cert:NAME`) and groups of tokens (`group:NAME`).
        reload groups: NamedLists = named_lists(&GROUP_MEMBER);
    }
}

keys! {
    /// `[[auth.certificates]]`. The first block with a matching `san` counts.
    struct RawCertificateValues {
        /// The names of clients' certificates: a subject alternative name with at most one `*` for any text. With `://` it is
        /// about URIs, with `@` about e-mail addresses, else about host names. The principal is `cert:NAME`.
        reload san: CertificatePattern = require(&CERTIFICATE_NAME);
        /// The principal of a key or token that may come with such a certificate; it is then the request's principal.
        /// Its `*` is the text of the `*` in `san`. A key or token of another principal is answered 401.
        reload same_as: String = read(&SAME_PRINCIPAL), shown "none may be beside it";
        /// Groups for rules.
        reload groups: Vec<LocatedValue<String>> = read_some(&GROUP);
        /// Scopes for rules and for the `scopes` of tools.
        reload scopes: Vec<LocatedValue<String>> = read_some(&SCOPE);
    }
}

keys! {
    /// `[[auth.issuers]]`
    struct RawIssuerValues {
        /// The issuer as its tokens name it in `iss`, byte for byte.
        reload issuer: String = require(&ISSUER);
        /// The address of the issuer's keys, if its metadata does not have it. Its metadata is at
        /// `/.well-known/oauth-authorization-server` or `/.well-known/openid-configuration`.
        reload jwks_url: Url = read(&TRUSTED_URL), shown "as the issuer's metadata says";
        /// A file with its keys (a JSON Web Key Set), instead of an address; read again when it changes.
        reload jwks_file: PathBuf = read(&KEY_SET_FILE);
        /// The algorithms of its signatures.
        reload algorithms: Vec<LocatedValue<Algorithm>> = read_some(&ALGORITHM), default ["RS256", "ES256"];
        /// Audiences (`aud`) that are accepted besides the address of the endpoint, for issuers that put none there.
        reload audiences: Vec<LocatedValue<String>> = read_some(&AUDIENCE);
        /// The accepted types (`typ`) of its tokens' headers. `"none"` is a header without one.
        reload token_types: Vec<LocatedValue<String>> = read_some(&TOKEN_TYPE), default ["at+jwt"];
        /// The claim with the groups of a person: a name, or names with dots between them (`realm_access.roles`).
        reload groups: String = read(&CLAIM), shown "no groups";
        /// The claim that owns tasks instead of `sub`: all people with the same value share their tasks.
        reload owner_claim: String = read(&CLAIM), shown "the subject, or the client where there is none";
        /// Scopes that include others: `implies = { admin = ["mcp", "reports:read"] }`.
        reload implies: NamedLists = named_lists(&SCOPE), shown "no scope includes another";
        /// How long the issuer's keys are used after they were last fetched; then its tokens get 503.
        reload max_stale: Duration = read(&DURATION_NOT_ZERO), default "24h", bounds "`\"10s\"` to `\"3650d\"`";
    }
}

keys! {
    /// `[[auth.api_keys]]`. The resolver checks that the key is written in exactly one way.
    struct RawApiKeyValues {
        /// The principal: it owns tasks, sessions and limits.
        reload id: String = require(&PRINCIPAL_ID), bounds "1 to 64 letters, digits, `.` `_` `@` `-`";
        /// The key itself, written as `"${VAR}"`; a literal key in the file causes a warning.
        reload key: ApiKey = read(&API_KEY);
        /// A file with the key; read again when it changes.
        reload key_file: PathBuf = read(&KEY_FILE);
        /// `ID:HEX`, the SHA-256 of the whole key (`printf %s "$KEY"` piped to `sha256sum`). Not a secret.
        reload key_sha256: ApiKey = read(&API_KEY_DIGEST);
        /// [Upstreams that the principal can use](docs/teams.md#access). The same in all blocks of one `id`.
        reload upstreams: Vec<LocatedValue<String>> = read_some(&UPSTREAM_NAME), shown "every upstream";
        /// [Tools that the principal can list and call](docs/teams.md#access), by their names at the upstream's own path.
        /// The same in all blocks of one `id`.
        /// A table has a list for each upstream: of other upstreams, the principal can use no tool.
        reload tools: ListOrTable = list_or_table(&PATTERN), shown "every tool";
        /// Tools that the principal cannot use, as a list or as a table. The same in all blocks of one `id`.
        reload deny: ListOrTable = list_or_table(&PATTERN);
        /// Scopes for rules and for the `scopes` of tools.
        reload scopes: Vec<LocatedValue<String>> = read_some(&SCOPE);
        /// Groups for rules.
        reload groups: Vec<LocatedValue<String>> = read_some(&GROUP);
        /// When the key expires: it is then refused as an unknown one, and its streams end. A date means its beginning
        /// in UTC.
        reload expires: Timestamp = time(&EXPIRY), shown "never", bounds "a date, or a time with its offset";
    }
}

keys! {
    /// `[auth.issuers.introspection]`, besides the keys of its client.
    struct RawIntrospection {
        /// The introspection endpoint of the issuer (RFC 7662).
        reload url: Url = require(&INTROSPECTION_URL), bounds "https, or http on this machine";
        /// The tokens that the issuer is asked about. `"opaque"`: tokens that are not signed; only one issuer can have
        /// this. `"signed"`: signed tokens, so that a revoked one is refused after 30 s; the issuer's keys are not
        /// needed then. `"all"`: both.
        reload tokens: IntrospectedTokens = word(INTROSPECTED), default "opaque";
    }
}

#[derive(Debug)]
pub(in crate::config) struct RawApiKey {
    pub(in crate::config) location: ConfigLocation,
    pub(in crate::config) is_inline: bool,
    pub(in crate::config) values: RawApiKeyValues,
    /// The limits of its holder, if they differ from the common ones.
    pub(in crate::config) limits: RawPrincipalLimits,
}

#[derive(Debug)]
pub(in crate::config) struct RawCertificate {
    pub(in crate::config) location: ConfigLocation,
    pub(in crate::config) values: RawCertificateValues,
}

#[derive(Debug)]
pub(in crate::config) struct RawIssuer {
    pub(in crate::config) location: ConfigLocation,
    pub(in crate::config) values: RawIssuerValues,
    pub(in crate::config) introspection: Option<RawClientTable<RawIntrospection>>,
}

pub(super) fn read_issuer(mut section: Section<'_, '_>) -> RawIssuer {
    let (location, values) = (section.location(), RawIssuerValues::read(&mut section));
    let introspection = read_client(section.section("introspection"), RawIntrospection::read);
    section.close();
    RawIssuer { location, values, introspection }
}

impl RawAuth {
    pub(in crate::config) fn asks_for(&self, mode: AuthMode) -> bool {
        self.mode.value.contains(&mode)
    }
}

pub(in crate::config) fn read_keys(mut root: Section<'_, '_>) -> Vec<RawApiKey> {
    let mut section = root.section("auth");
    let keys = section.each("api_keys", read_api_key);
    section.close();
    root.close();
    keys
}

pub(super) fn read_api_key(mut section: Section<'_, '_>) -> RawApiKey {
    let (location, is_inline) = (section.location(), !section.has_variable("key"));
    let values = RawApiKeyValues::read(&mut section);
    let limits = read_table(section.section("limits"));
    section.close();
    RawApiKey { location, is_inline, values, limits }
}

keys! {
    /// `[[auth.rules]]`. The first rule that fits decides.
    struct RawAccessRuleValues {
        /// The upstreams that the rule is about. A pattern means the configured upstreams that it matches.
        reload upstreams: Vec<LocatedValue<String>> = read_some(&UPSTREAM_PATTERN), shown "every upstream";
        /// The tools that the rule is about, by their names at the upstream's own path. A rule without `tools`, `prompts`
        /// and `resources` is about everything; a rule with one of them, about nothing else.
        reload tools: Vec<LocatedValue<String>> = read_some(&PATTERN);
        /// As `tools`, for prompts.
        reload prompts: Vec<LocatedValue<String>> = read_some(&PROMPT_PATTERN);
        /// As `tools`, for URIs of resources, and of resource templates as they are written.
        reload resources: Vec<LocatedValue<String>> = read_some(&RESOURCE_PATTERN);
        /// Members of a call's `arguments`: each must be a text that matches. The rule is then about tools alone.
        reload arguments: NamedLists = named_lists(&ARGUMENT_PATTERN);
        /// `true`: a caller that the rule fits may use the item. `false`: it may not.
        reload allow: bool = flag();
    }
}

keys! {
    /// `who` of a rule: of every key, the caller needs one name.
    struct RawRuleWho {
        /// Principals, such as `key:ada`.
        reload ids: Vec<LocatedValue<String>> = read_some(&CALLER_ID);
        /// Groups of keys, of tokens, or of `[auth.groups]`.
        reload groups: Vec<LocatedValue<String>> = read_some(&GROUP);
        /// Scopes of keys and tokens.
        reload scopes: Vec<LocatedValue<String>> = read_some(&SCOPE);
        /// Issuers of tokens.
        reload issuer: Vec<String> = one_or_all(&TOKEN_ISSUER);
    }
}

#[derive(Debug)]
pub(in crate::config) struct RawAccessRule {
    pub(in crate::config) location: ConfigLocation,
    pub(in crate::config) who: RawRuleWho,
    pub(in crate::config) who_location: Option<ConfigLocation>,
    pub(in crate::config) values: RawAccessRuleValues,
}

pub(super) fn read_rule(mut section: Section<'_, '_>) -> RawAccessRule {
    let (location, values) = (section.location(), RawAccessRuleValues::read(&mut section));
    let who = section.section("who");
    let (who_location, who) = (who.written_location(), read_table(who));
    section.close();
    RawAccessRule { location, who, who_location, values }
}
