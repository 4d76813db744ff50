//! Defines why a request exceeds a rate limit.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{Executed, GatewayFault, Principal, Reason};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateBound {
    Requests {
        per_second: NonZeroU32,
        burst: NonZeroU32,
    },
    /// Depends on the current number of tasks.
    Polls {
        per_second: u32,
    },
    UnknownTasks {
        per_minute: NonZeroU32,
    },
    /// Too many principals at the same time.
    Principals,
}

impl fmt::Display for RateBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests { per_second, burst } => {
                write!(f, "{per_second} requests a second, {burst} at once (`requests_per_second`, `requests_burst`)")
            }
            Self::Polls { per_second } => {
                write!(f, "{per_second} polls a second for the present number of unfinished tasks (`polls_per_task`)")
            }
            Self::UnknownTasks { per_minute } => {
                write!(f, "{per_minute} requests a minute for missing tasks")
            }
            Self::Principals => f.write_str("requests of 10,000 clients within a minute"),
        }
    }
}

/// Why a request is refused. It had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateRefusal {
    pub bound: RateBound,
    /// The principal that the requests are counted for.
    pub whom: Principal,
    pub wait: Duration,
}

impl RateRefusal {
    pub const fn fault(&self) -> GatewayFault {
        GatewayFault { retry_after: Some(self.wait), ..GatewayFault::new(Reason::RateLimited, Executed::No) }
    }
}

impl fmt::Display for RateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Too many requests: the limit is ")?;
        if self.bound == RateBound::Principals {
            return write!(f, "{}", self.bound);
        }
        write!(f, "{}, for ", self.bound)?;
        // The client knows its own credential.
        match self.whom.key_id() {
            Some(id) => write!(f, "the key `{id}`"),
            None if self.whom.certificate_name().is_some() => f.write_str("each certificate's name"),
            None if self.whom.address().is_some() || !self.whom.is_identified() => f.write_str("each address"),
            None => f.write_str("each credential"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_bound_and_principal_and_shows_no_credential() {
        let number = |number| NonZeroU32::new(number).unwrap();
        let requests = RateBound::Requests { per_second: number(50), burst: number(100) };
        let address = Principal::anonymous().counted_at(Some("192.0.2.7"));
        for (whom, bound, expected) in [
            (
                Principal::new("key:ada"),
                requests,
                "50 requests a second, 100 at once (`requests_per_second`, `requests_burst`), for the key `ada`",
            ),
            (
                Principal::bearing(b"Bearer secret"),
                requests,
                "50 requests a second, 100 at once (`requests_per_second`, `requests_burst`), for each credential",
            ),
            (
                address,
                RateBound::Polls { per_second: 52 },
                "52 polls a second for the present number of unfinished tasks (`polls_per_task`), for each address",
            ),
            (
                Principal::anonymous(),
                RateBound::UnknownTasks { per_minute: number(20) },
                "20 requests a minute for missing tasks, for each address",
            ),
            (Principal::new("key:ada"), RateBound::Principals, "requests of 10,000 clients within a minute"),
        ] {
            let refusal = RateRefusal { bound, whom, wait: Duration::from_millis(20) };
            assert_eq!(refusal.to_string(), format!("Too many requests: the limit is {expected}"));
            assert_eq!(refusal.fault().retry_after, Some(Duration::from_millis(20)));
        }
    }
}
