//! Declares the keys of an upstream.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use url::Url;

use super::super::keys::keys;
use super::super::section::{LocatedValue, NamedTexts};
use super::super::value::{
    ARGUMENT, AUDIENCE, CREDENTIAL_HEADER, DRAFT, DURATION, DURATION_NOT_ZERO, ENV_FILE, ENV_VALUE, FOLDER,
    FORWARDED_HEADER, KEY_FILE, NEW_NAME, PATTERN, PEM_FILE, PROXY, RESOURCE, SCOPE, SCOPES, SECRET, SERVED_PATH, SIZE,
    TOKEN_URL, UPSTREAM_URL, WORD_OF_COMMAND, WORDS, WordList,
};
use crate::face::client_login::ResourceName;
use crate::task::{AfterCrash, Draft, EarlyInput, FallbackPolicy, TaskMode};
use crate::upstream::subject_token::SubjectTokenType;
use crate::upstream::transport::stdio::StderrUse;
use crate::wire::ProtocolVersion;

/// The most elements by which a call may be split.
const SPLIT_MAX: u32 = 1_000;
/// The largest limits for the depth of subtasks and for the subtasks of one tree.
const DEPTH_MAX: u32 = 32;
const COUNT_MAX: u32 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum RawTransport {
    Auto,
    StreamableHttp,
    Sse,
    Stdio,
}

const TRANSPORTS: WordList<RawTransport> = &[
    ("auto", RawTransport::Auto),
    ("streamable-http", RawTransport::StreamableHttp),
    ("sse", RawTransport::Sse),
    ("stdio", RawTransport::Stdio),
];
const RESOURCE_NAMES: WordList<ResourceName> =
    &[("gateway", ResourceName::Gateway), ("upstream", ResourceName::Upstream)];
const TASK_MODES: WordList<TaskMode> = &[
    ("never", TaskMode::Never),
    ("auto", TaskMode::Auto),
    ("always", TaskMode::Always),
    ("required", TaskMode::Required),
];
const EARLY_INPUTS: WordList<EarlyInput> = &[("task", EarlyInput::Task), ("ask-first", EarlyInput::AskFirst)];
const AFTER_CRASHES: WordList<AfterCrash> =
    &[("fail", AfterCrash::Fail), ("rerun-if-safe", AfterCrash::RerunIfSafe), ("rerun", AfterCrash::Rerun)];
const STDERR_USES: WordList<StderrUse> = &[("never", StderrUse::Never), ("on-death", StderrUse::OnDeath)];
const SUBJECT_TOKEN_TYPES: WordList<SubjectTokenType> = &[
    ("access_token", SubjectTokenType::AccessToken),
    ("id_token", SubjectTokenType::IdToken),
    ("jwt", SubjectTokenType::Jwt),
];
const FALLBACKS: WordList<FallbackPolicy> = &[("hold", FallbackPolicy::Hold), ("tools", FallbackPolicy::Tools)];

/// "auto" is `None`.
fn protocols() -> Vec<(&'static str, Option<ProtocolVersion>)> {
    let advertised = ProtocolVersion::ALL.into_iter().filter(|version| version.traits().is_advertised);
    let mut protocols = vec![("auto", None)];
    protocols.extend(advertised.map(|version| (version.as_str(), Some(version))));
    protocols
}

keys! {
    /// The keys of every upstream.
    struct RawUpstreamValues {
        /// The MCP endpoint of the server.
        reload url: Url = read(&UPSTREAM_URL), bounds "http or https, no user info, no fragment";
        /// The program and its arguments, without a shell; or the program alone, with `args`.
        reload command: Vec<String> = one_or_all(&WORD_OF_COMMAND), bounds "no empty program";
        /// Where clients reach the upstream by streamable HTTP.
        reload path: String = read(&SERVED_PATH), shown "`\"/NAME/mcp\"`", bounds "letters, digits, `/` `-` `.` `_` `~`; no empty or dotted segment";
        /// Where clients of HTTP+SSE (2024-11-05) reach the upstream. The default is `path` with `/sse` in place of a
        /// last `/mcp`, or appended.
        reload sse_path: String = read(&SERVED_PATH), shown "`\"/NAME/sse\"`", bounds "as `path`";
        /// `"auto"` tries streamable HTTP, then HTTP+SSE if the server refuses `initialize`. `"stdio"` goes with
        /// `command` alone.
        reload transport: RawTransport = word(TRANSPORTS), default "auto";
        /// The protocol version towards the server; `"auto"` asks the server. At a server of 2026-07-28 that also has
        /// sessions, `"auto"` serves clients that declare elicitation, sampling or roots in sessions ([servers of both
        /// eras](docs/compatibility.md#servers-of-both-eras)).
        reload protocol: Option<ProtocolVersion> = word(&protocols()), default "auto";
        /// Tool calls in progress at the server at one time. One of several principals gets at most
        /// `permits_percent_max` of them.
        reload in_flight_max: u32 = count(1), default 256;
        /// Tool calls that wait for `in_flight_max`. Further ones are refused (`queue_full`, 503).
        reload queue_max: u32 = count(0), default 1_536;
        /// How long a call without a task waits in the queue (`queue_deadline`, 503).
        reload queue_deadline: Duration = read(&DURATION_NOT_ZERO), default "30s";
        /// Methods other than `tools/call`: the longest wait for the response's first byte (`upstream_timeout`).
        reload first_byte_max: Duration = read(&DURATION_NOT_ZERO), default "60s";
        /// Methods other than `tools/call`: the longest pause between two parts of a response, also between comments.
        reload idle_max: Duration = read(&DURATION_NOT_ZERO), default "120s";
        /// After 15 s without progress in a call with a progress token, the gateway sends a progress notification with a
        /// minimally higher value. Other silent streams get a comment. `false` leaves only the comments.
        reload life_signs: bool = flag(), default true;
        /// The resource that the server's metadata names for tokens: this gateway's address of the upstream, or the
        /// server's own value. See [OAuth](docs/oauth.md).
        reload oauth_resource: ResourceName = word(RESOURCE_NAMES), default "gateway", bounds "with `forward_authorization`";
    }
}

keys! {
    /// The keys of an upstream with a `url` alone.
    struct RawUrlValues {
        /// How long opening a connection may take, and how long requests may wait for a stream of HTTP/2. With `url` alone.
        reload connect_max: Duration = read(&DURATION_NOT_ZERO), default "5s";
        /// The proxy in front of the server. Without it `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` decide, and a server
        /// on this machine has none. With `url` alone.
        reload proxy: Option<Url> = read(&PROXY), bounds "http, no user info, no path";
        /// A file that only its owner can use, with `user:password` for `proxy`; read again when it changes.
        reload proxy_credentials_file: PathBuf = read(&KEY_FILE);
        /// Headers of a client's request that are forwarded with the upstream request that it causes. With `url` alone.
        reload forward_headers: Vec<HeaderName> = read_all(&FORWARDED_HEADER), default [], bounds "no credentials, cookies, connection or MCP headers";
        /// `true`: the client's `Authorization` is forwarded. Set it only if a token for the gateway may also be a
        /// token for the server. The server's 401 and 403 reach the client, which logs in there
        /// ([OAuth](docs/oauth.md)). On loopback without keys, the credential is the owner of tasks; requests without
        /// one are anonymous. Sessions that the gateway opens for a client carry it too. A key of the gateway's is
        /// never forwarded: its clients [send both](docs/teams.md#with-a-servers-own-login).
        reload forward_authorization: bool = flag(), default false;
    }
}

keys! {
    /// The keys of an upstream with a `command` alone.
    struct RawProgramValues {
        /// Arguments appended to `command`.
        reload args: Vec<String> = read_all(&WORD_OF_COMMAND), default [];
        /// The program's working directory; without it, the gateway's.
        reload cwd: PathBuf = read(&FOLDER);
        /// Processes at one time. One of several principals gets at most `permits_percent_max` of them. At the bound an
        /// idle process of the principal with the most processes is ended; if there is none, the client is refused.
        reload processes_max: u32 = count(1), default 64;
        /// Open files of each process.
        reload descriptors_max: u32 = count(16);
        /// Writable memory of each process.
        reload memory_max: usize = read(&SIZE);
        /// `"on-death"`: the last 20 lines of standard error of a process that ended by itself are written to the log,
        /// and shown with the tasks that failed with it. They may hold arguments of calls.
        reload stderr: StderrUse = word(STDERR_USES), default "never";
        /// The program's environment variables. From the gateway's environment it gets only `PATH`, `HOME` and `LANG`.
        reload env: NamedTexts<String> = texts(&ENV_VALUE), bounds "names without `=`, at most 256 bytes";
        /// As `env`, with values that are read from files at each start of a process, without a line break at the end.
        reload env_files: NamedTexts<PathBuf> = texts(&ENV_FILE), bounds "as `env`";
    }
}

keys! {
    /// The rules for calls, of the upstream or in a block of tools.
    struct RawCallRules {
        /// The longest that one tool call may run (`deadline_exceeded`).
        reload deadline: Duration = read(&DURATION_NOT_ZERO), default "1h";
        /// As `first_byte_max`, for `tools/call`. A server that answers in JSON sends nothing before its tool ends.
        reload call_first_byte_max: Duration = read(&DURATION_NOT_ZERO);
        /// As `idle_max`, for `tools/call`.
        reload call_idle_max: Duration = read(&DURATION_NOT_ZERO);
        /// Largest arguments of one tool call. Without it only `limits.body_bytes_max` applies.
        reload arguments_bytes_max: usize = read(&SIZE);
    }
}

keys! {
    /// `[upstreams.NAME.auth]`. The resolver checks that the credential is written in exactly one way.
    struct RawCredentialValues {
        /// The value of `Authorization`.
        reload authorization: HeaderValue = read(&SECRET), bounds "one line of visible ASCII, at most 8 KiB";
        /// Another header for the credential.
        reload header: HeaderName = read(&CREDENTIAL_HEADER), bounds "no connection or MCP header";
        /// The value of `header`.
        reload value: HeaderValue = read(&SECRET), bounds "as `authorization`";
        /// A file with the value of `header`; read again when it changes.
        reload value_file: PathBuf = read(&KEY_FILE);
    }
}

keys! {
    /// `[upstreams.NAME.credential]`, besides its tables. The resolver checks that it has exactly one source.
    struct RawCredentialCommand {
        /// A program and its arguments, without a shell, with the gateway's `PATH`, `HOME` and `LANG` alone. It prints
        /// `{"token": "…", "expires": 3600}` within 10 s: seconds, or a time in UTC such as `"2027-01-31T18:00:00Z"`;
        /// without `expires` the token is used for 5 minutes. Its standard error goes to the log.
        reload command: Vec<String> = read_all(&WORD_OF_COMMAND), bounds "no empty program";
    }
}

keys! {
    /// `[upstreams.NAME.credential.client_credentials]`, `exchange` and `id_jag`, besides the keys of their client.
    struct RawTokenTarget {
        /// The token endpoint of the authorization server.
        reload token_url: Url = require(&TOKEN_URL), bounds "https, or http on this machine";
        /// The scopes to ask for, with blanks between them.
        reload scope: String = read(&SCOPES);
        /// The resource that the token is for (RFC 8707): mostly the server's `url`. Required for `exchange`.
        reload resource: String = read(&RESOURCE), bounds "a URI without a fragment";
    }
}

keys! {
    /// The keys of `exchange` alone.
    struct RawExchange {
        /// The audience that the token is for, where the authorization server wants one beside `resource`. With
        /// `id_jag` it is required, and is the issuer of the other authorization server.
        reload audience: String = read(&AUDIENCE);
        /// The type of clients' tokens for the authorization server: `"id_token"` if clients send identity tokens.
        reload subject_token_type: SubjectTokenType = word(SUBJECT_TOKEN_TYPES), default "access_token";
        /// `true` exchanges tokens that are bound to a client's key or certificate (`cnf`) too, though the gateway cannot
        /// prove that it holds the key. Otherwise they are refused (`credential_bound`).
        reload bound_tokens: bool = flag(), default false;
    }
}

keys! {
    /// `[upstreams.NAME.tls]`
    struct RawUpstreamTls {
        /// PEM file of the authorities that may certify the server, in place of the system's.
        reload ca: PathBuf = read(&PEM_FILE);
        /// PEM file of the gateway's client certificate. Needs `key`.
        reload certificate: PathBuf = read(&PEM_FILE);
        /// PEM file of its private key.
        reload key: PathBuf = read(&PEM_FILE);
    }
}

keys! {
    /// The rules for tasks, in `[upstreams.NAME.tasks]` or in a block of tools.
    struct RawTaskRules {
        /// `"never"`: plain calls only. `"auto"`: a call that outlives `grace` becomes a task. `"always"`: a task from
        /// the start for clients that know tasks. `"required"`: only as a task.
        reload mode: TaskMode = word(TASK_MODES), default "auto";
        /// How long `"auto"` waits for the result before it gives a handle.
        reload grace: Duration = read(&DURATION), default "2s", bounds "`\"0s\"` to `\"30s\"`";
        /// How long a task is kept from its creation.
        reload ttl: Duration = read(&DURATION_NOT_ZERO), shown "`\"24h\"`", bounds "`\"1ms\"` to `ttl_max`";
        /// The longest `ttl` that a client may ask for.
        reload ttl_max: Duration = read(&DURATION_NOT_ZERO), shown "`\"7d\"`";
        /// How long a result is kept at least, even beyond `ttl`.
        reload keep_result_min: Duration = read(&DURATION), default "15m", bounds "`\"0s\"` to `\"3650d\"`";
        /// The poll interval that a task's handle names.
        reload poll_interval: Duration = read(&DURATION_NOT_ZERO), default "1s";
        /// For a question of the server before there is a handle. `"task"`: the question creates the handle.
        /// `"ask-first"`: the client answers by sending its call again, and gets the handle after that.
        reload early_input: EarlyInput = word(EARLY_INPUTS), default "task";
        /// How long a question waits for its answer. Then the server is notified that there is none, and the call
        /// continues.
        reload input_deadline: Duration = read(&DURATION_NOT_ZERO), default "30m";
        /// Text that 2025-11-25 clients may hand to their model while the task runs.
        reload immediate_response: String = read(&WORDS), bounds "at most 4,096 bytes";
        /// For a call that was in flight when the process was killed or its drain ended, and that the server cannot
        /// resume. `"fail"`: an error that says that the call may have run. `"rerun-if-safe"`: sent again, at most
        /// twice, if the tool's annotations have `readOnlyHint` or `idempotentHint` (never for 2025-11-25 clients).
        /// `"rerun"`: sent again in any case.
        reload after_crash: AfterCrash = word(AFTER_CRASHES), default "fail";
        /// For clients without tasks. `"hold"`: they wait for the result, with life signs. `"tools"`: a call that
        /// outlives `grace` is answered with a text that names its task, and `tools/list` has `task_status`,
        /// `task_result` and `task_cancel` (`taskgate_task_status` and so on if the server has a tool of that name).
        /// Tools that may be answered so are listed to these clients without their output schema.
        reload fallback: FallbackPolicy = word(FALLBACKS), default "hold";
    }
}

keys! {
    /// The drafts of `[upstreams.NAME.tasks]`, and their limits.
    struct RawDrafts {
        /// Drafts of the protocol that clients of this upstream may use. `"sep-1686"`: calls under task ids of the
        /// client's own ([drafts](docs/compatibility.md#drafts)). `"sep-2268"`: 2025-11-25 clients see subtasks: of
        /// servers that have tasks, and of `split` calls ([drafts](docs/compatibility.md#drafts)).
        /// `"sep-1904"`: `tasks/list` takes filters and an order ([filtered lists](docs/compatibility.md#filtered-lists)).
        reload drafts: Vec<Draft> = read_all(&DRAFT), default [];
        /// How many levels of subtasks below a task are followed at a server with its own tasks, if `"sep-2268"` is on.
        reload subtasks_depth_max: u32 = count_in(1..=DEPTH_MAX), default 8;
        /// How many subtasks of one tree are followed. The log names a tree that has more.
        reload subtasks_max: u32 = count_in(1..=COUNT_MAX), default 1_000;
    }
}

keys! {
    /// The keys of a block of tools that are no rules of an upstream.
    struct RawToolValues {
        /// The tools of the block, by the names that clients see.
        reload pattern: String = require(&PATTERN), bounds "not empty", named "match";
        /// Largest result of these tools; `limits.result_bytes_max` without it.
        reload result_bytes_max: usize = read(&SIZE), shown "inherited";
        /// The name that clients see; `*` takes the text that the one `*` of `match` stands for. `match` is then the
        /// server's own name. A server's tool that already has the new name is hidden, unless a block above fits it.
        reload rename: String = read(&NEW_NAME), bounds "at most one `*`, no `?`";
        /// Scopes that a caller needs for these tools, all of them, besides a rule that allows the call.
        reload scopes: Vec<LocatedValue<String>> = read_some(&SCOPE);
        /// `true`: clients can neither list nor call these tools. `match` is then the server's own name.
        reload hide: bool = flag(), default false;
        /// `true`, with `command` alone: each call has a separate process. The processes count for `processes_max`; a
        /// call waits up to 30 s for one.
        reload process_per_call: bool = flag(), default false;
    }
}

keys! {
    /// `split` of a block of tools
    struct RawSplit {
        /// The argument that is the list.
        reload argument: String = require(&ARGUMENT);
        /// Calls that run side by side, at most.
        reload parallel: u32 = count_in(1..=SPLIT_MAX), default 4;
        /// Elements that one call may have.
        reload max: u32 = count_in(1..=SPLIT_MAX), default 100;
    }
}
