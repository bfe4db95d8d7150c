//! How a remote limiter was set up: what does not change while it runs.

use super::backend::Rule;
use super::key::Key;
use std::time::Duration;

/// The most units that a limit, a burst or a request at a store can have: what doubles hold as whole numbers, with room for
/// sums.
pub const MAX_UNITS: u64 = 1 << 40;

/// What happens to requests while the store is away: when it could not be reached for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// They are refused as [`Unavailable`](crate::Reason::Unavailable), at once.
    #[default]
    Reject,
    /// They are admitted, all of them, and counted nowhere.
    Admit,
    /// They are admitted out of a share of this process: one part in so many of the limit, or of the rate. So as many
    /// processes as there are parts admit no more than the limit together. It comes on top of what is still held at the
    /// store by those who can reach it.
    Share {
        /// How many parts.
        of: u64,
    },
}

/// Units taken several at a time, and spent in this process.
///
/// # Bounds
/// *Permits* are never over-admitted: the store counts a whole block as in use. What lies idle in a process is wasted as long
/// as it lies there: at most until [`idle`](Self::idle) has passed, and no longer than it takes to tell the process when
/// others wait.
///
/// *Tokens* of a block have left the store's bucket, so that the rate in the long run is never exceeded. But processes may
/// spend at the same instant what they took at different ones: in a span `t` at most `burst + rate x t + P x most`, with `P`
/// processes. For a bound of `B + rate x t`, give the rate a burst of `B - P x most`. Tokens that were not spent within
/// [`expiry`](Self::expiry) are dropped. A process that dies takes at most `most` with it. All of this holds as long as
/// nobody asks for more than `most` at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    pub(super) most: u64,
    pub(super) low: u64,
    pub(super) idle: Duration,
    pub(super) turn: Duration,
    pub(super) expiry: Duration,
    pub(super) span: Duration,
}

impl Prefetch {
    /// Up to `most` units at hand at a time; how many are taken follows the demand.
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

    /// At least so many are kept at hand, as far as they are to be had, also while nobody asks; none unless set.
    /// `try_admit` finds only what is at hand.
    #[must_use]
    pub const fn keep(self, low: u64) -> Self {
        Self { low, ..self }
    }

    /// Permits that were free for so long go back; 500 ms unless set.
    #[must_use]
    pub const fn idle(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    /// While others wait, permits that come free go on within this process for so long, and to the others from then on;
    /// 10 ms unless set. Zero is fair to the single request, and takes a round trip for each.
    #[must_use]
    pub const fn turn(self, turn: Duration) -> Self {
        Self { turn, ..self }
    }

    /// Tokens that were not spent for so long are dropped; 100 ms unless set.
    #[must_use]
    pub const fn expiry(self, expiry: Duration) -> Self {
        Self { expiry, ..self }
    }

    /// A block of tokens is what the demand of late takes so long to spend, as far as `most` allows; 20 ms unless set.
    #[must_use]
    pub const fn span(self, span: Duration) -> Self {
        Self { span, ..self }
    }
}

/// All settings.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) key: Key,
    pub(super) rule: Rule,
    /// As it was set up.
    pub(super) set_up: Rule,
    pub(super) client: u64,
    pub(super) ttl: Duration,
    pub(super) renewal: Duration,
    pub(super) timeout: Duration,
    pub(super) retry: Duration,
    pub(super) on_unavailable: OnUnavailable,
    pub(super) unavailable_after: Duration,
    pub(super) prefetch: Option<Prefetch>,
}

impl Config {
    /// Units are spent, and do not come back.
    pub(super) fn spends(&self) -> bool {
        !matches!(self.rule, Rule::Permits { .. })
    }

    /// How long tokens that were not spent are kept.
    pub(super) fn expiry(&self) -> Duration {
        match (self.prefetch, self.rule) {
            // What comes back late would be there beside what the window has again.
            (None, Rule::Window { length, .. }) => Duration::from_millis(10).min(length / Rule::SEGMENTS as u32),
            (prefetch, _) => prefetch.unwrap_or(Prefetch::up_to(0)).expiry,
        }
    }

    /// The time from sending a step until what it holds is lost, unless it is renewed: a hundredth less than the store
    /// gives, for clocks that run apart.
    pub(super) fn lease(&self) -> Duration {
        let margin = if seeded!("remote_trusts_clocks") { 0 } else { 1 };
        self.ttl - self.ttl / 100 * margin
    }
}
