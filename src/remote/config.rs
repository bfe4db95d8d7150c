//! The configuration of a remote limiter, fixed while it runs.

use super::backend::Rule;
use super::key::Key;
use std::time::Duration;

/// The most units of a limit, a burst or a request at a store: doubles hold them as whole numbers, with space for sums.
pub const MAX_UNITS: u64 = 1 << 40;

/// The rule at the store of a rate whose capacity is leased.
pub(super) const LEASED: Rule = Rule::Permits {
    limit: super::client::UNITS,
};

/// What happens to requests while the store is unavailable, which it is after it could not be reached for some time, or has said for as
/// long that it cannot serve.
///
/// A store that [refuses](super::StoreError::Refused) for good, as where a right is missing, is not unavailable. Its requests are refused as
/// [`Misconfigured`](crate::Reason::Misconfigured), at once, until it carries out a step again.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::remote::{Key, Memory, OnUnavailable, Remote};
/// let clock = ManualClock::new();
/// // Four processes: each admits a quarter by itself while the store is away.
/// let reports = Remote::permits(Key::new("reports")?, 20)
///     .on_unavailable(OnUnavailable::Share { of: 4 })
///     .on(&clock)
///     .in_place(Memory::new(&clock))?;
/// assert!(!reports.stats().unavailable);
/// assert_eq!(OnUnavailable::default(), OnUnavailable::Reject);
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// They are refused as [`Unavailable`](crate::Reason::Unavailable), at once.
    #[default]
    Reject,
    /// All are admitted, and not counted.
    Admit,
    /// They are admitted from a share of this process: a fixed part of the limit, or of the rate. So as many processes as there
    /// are parts admit no more than the limit together. The share comes on top of the units held by processes that still reach
    /// the store.
    Share {
        /// The number of parts.
        of: u64,
    },
}

/// Units fetched several at a time, to be spent in this process.
///
/// # Bounds
/// *Permits* are never over-admitted: the store counts all fetched ones as in use. Idle ones are wasted while they stay in a
/// process: at most until [`idle`](Self::idle) has passed, and no longer than it takes to notify the process that others wait.
///
/// *Tokens* that are fetched have left the store's bucket, so that the rate in the long run is never exceeded. But processes
/// may spend at the same instant what they fetched at different ones, each within [`expiry`](Self::expiry) of the request for it.
/// So a span `t` has at most `burst + rate x (t + expiry)`, whatever the number of processes, and at most
/// `burst + rate x t + P x most` with `P` processes. A block that took longer to come than its expiry is kept for 10 ms more, for
/// waiters. A process that dies takes at most `most` with it. All of this holds as long as no request exceeds `most`.
///
/// ```
/// # use tollgate::remote::{Prefetch, Key, Memory, Remote};
/// # use tollgate::{LimiterExt, ManualClock};
/// # use std::sync::Arc;
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// let calls = Remote::permits(Key::new("calls")?, 100).prefetch(Prefetch::up_to(10)).on(&clock).in_place(store)?;
/// clock.run(calls.acquire(1)).unwrap();
/// // In this process, without the store.
/// assert!(calls.try_admit(1).is_ok());
///
/// // Two of them even without demand.
/// let ready = Prefetch { low: 2, ..Prefetch::up_to(10) };
/// assert!(ready.low < ready.most);
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// The most units that are kept available here.
    pub most: u64,
    /// Keeps at least this many units available here, as far as the store has them, also without demand; none unless set.
    /// `try_admit` finds only available units.
    pub low: u64,
    /// Returns permits that were free for this long; 500 ms unless set.
    pub idle: Duration,
    /// While others wait, freed permits stay within this process for this long, and then go to the others; 10 ms unless set.
    /// Zero is fair to the single request, and takes a round trip for each.
    pub turn: Duration,
    /// Drops tokens that were not spent within this time of the request for them; 100 ms unless set. Take several round trips.
    pub expiry: Duration,
    /// Sizes a batch of tokens as the recent demand of this time, up to `most`; 20 ms unless set.
    pub span: Duration,
}

impl Prefetch {
    /// Keeps up to `most` units available here; the number fetched at a time follows the demand.
    #[must_use]
    pub const fn up_to(most: u64) -> Self {
        Self {
            most,
            low: 0,
            idle: Duration::from_millis(500),
            turn: Duration::from_millis(10),
            expiry: Duration::from_millis(100),
            span: Duration::from_millis(20),
        }
    }
}

/// All settings.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// The name of the limiter, and that under which the store keeps it.
    pub(super) name: Key,
    pub(super) key: Key,
    pub(super) rule: Rule,
    /// The rule as it was set up.
    pub(super) set_up: Rule,
    pub(super) client: u64,
    pub(super) ttl: Duration,
    pub(super) renewal: Duration,
    pub(super) timeout: Duration,
    pub(super) retry: Duration,
    pub(super) on_unavailable: OnUnavailable,
    pub(super) unavailable_after: Duration,
    pub(super) prefetch: Option<Prefetch>,
    /// The capacity of the rate is leased.
    pub(super) capacity: bool,
    /// The caller leases the capacity, or counts in its place: all processes have one quota for good.
    pub(super) quota_is_fixed: bool,
}

impl Config {
    /// True if the store counts units that are spent, and do not come back.
    pub(super) fn spends(&self) -> bool {
        self.admits_tokens() && !self.capacity
    }

    /// True if admissions spend tokens. False if they hold permits.
    pub(super) fn admits_tokens(&self) -> bool {
        !matches!(self.rule, Rule::Permits { .. })
    }

    /// The rule by which the store counts.
    pub(super) fn store_rule(&self) -> Rule {
        if self.capacity {
            return LEASED;
        }
        self.rule
    }

    /// How long tokens that were not spent are kept.
    pub(super) fn expiry(&self) -> Duration {
        match (self.prefetch, self.rule) {
            // A late return would add to what the window has again.
            (None, Rule::Window { length, .. }) => Duration::from_millis(10).min(length / Rule::SEGMENTS as u32),
            (prefetch, _) => prefetch.unwrap_or(Prefetch::up_to(0)).expiry,
        }
    }

    /// The time from sending a sync until the units are lost, unless it is renewed: 1 % less than the store allows, since
    /// clocks drift apart.
    pub(super) fn lease(&self) -> Duration {
        self.ttl - self.ttl / 100
    }
}

#[cfg(test)]
impl Config {
    /// Settings of a client by itself.
    pub(super) fn of(rule: Rule, prefetch: Option<Prefetch>) -> Self {
        let name = Key::new("shared").expect("a name");
        let second = Duration::from_secs(1);
        Self {
            key: name.clone(),
            name,
            rule,
            set_up: rule,
            client: 1,
            ttl: 10 * second,
            renewal: 3 * second,
            timeout: second,
            retry: second,
            on_unavailable: OnUnavailable::Reject,
            unavailable_after: 3 * second,
            prefetch,
            capacity: false,
            quota_is_fixed: false,
        }
    }
}
