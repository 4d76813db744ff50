//! The canonical task and its pure transition: no clock, no I/O, no new id. Begin with [`model`], [`mod@transition`].

pub mod access_rules;
pub mod caller;
pub mod digest;
pub mod drafts;
pub mod id;
pub mod item_patterns;
pub mod list_filter;
pub mod model;
pub mod names;
pub mod policy;
pub mod principal;
pub mod principal_access;
pub mod principal_limits;
pub mod reference;
pub mod summary;
pub mod time;
pub mod transition;

pub use access_rules::{
    AccessItem, AccessRule, AccessRules, AccessVerdict, DecisionArguments, GroupMembers, RuleArgument, RuleItems,
    RuleWho,
};

pub use caller::{AdmittedCallers, Caller, Claims, CredentialHolders};
pub use digest::Digest;
pub use drafts::{Draft, Drafts, SubtaskLimits};
pub use id::{TaskId, TaskKey};
pub use item_patterns::ItemPatterns;
pub use list_filter::{ListDirection, ListFilter, ListPosition, OrderedBy, TimeRange};
pub use model::{
    Answer, Attempt, CallOrigin, ChosenId, ClientKind, Executed, Failure, GatewayFault, Idempotency, InputKey, Outcome,
    PendingEffects, Phase, ProcessExit, Question, Reason, Recovery, SessionScope, StoredCall, Task, TaskTimes,
    TaskVisibility, TreeLinks,
};
pub use reference::ShortReference;

pub use names::{NamePattern, NameRule, PublishedName, ToolNames};
pub use policy::{
    AfterCrash, CallLimits, EarlyInput, FallbackPolicy, HandleSupport, Plan, SplitRule, TTL_MAX_ANONYMOUS, TaskMode,
    ToolPolicy, ToolRules,
};
pub use principal::{OperatorRight, Principal};
pub use principal_access::{
    AccessDecision, DecidedBy, PrincipalAccess, PrincipalAccessTable, ToolAccess, ToolLists, ToolScopes, WithheldBy,
};
pub use principal_limits::{
    OwnerCounts, PermitShare, PrincipalCounts, PrincipalLimitTable, PrincipalLimits, RateBound, RateRefusal,
};
pub use summary::{PhaseKind, Summary, SummaryPhase};
pub use time::{Clock, ManualClock, SteadyClock, SystemClock, Timestamp};
pub use transition::{Effect, Event, SendAttempt, transition};
