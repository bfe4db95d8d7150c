//! What an admission remembers.

use crate::core::ticket::Ticket;
use crate::time::Instant;

/// What one admission holds.
///
/// ```
/// # use tollgate::Limiter;
/// # use tollgate::remote::{Memory, Remote, RemoteTicket};
/// fn is_ticket<L: Limiter<Ticket = RemoteTicket>>() -> bool {
///     true
/// }
/// assert!(is_ticket::<Remote<Memory>>());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteTicket {
    pub(in crate::remote) units: u64,
    /// The number of the session; or [`UNCOUNTED`], or [`SHARED`].
    pub(in crate::remote) term: u64,
    /// Permits: the token of the last grant, and in `order` the number of admissions since it. Tokens: the moment since which
    /// they are missing, and in `order` until when they would have been kept. Of leased capacity: the ticks at which they were
    /// taken.
    pub(in crate::remote) token: u64,
    pub(in crate::remote) order: u64,
}

/// The term of an admission that is counted nowhere.
pub(super) const UNCOUNTED: u64 = 0;
/// The term of an admission from this process's own share.
pub(super) const SHARED: u64 = u64::MAX;

impl RemoteTicket {
    /// Permits of a grant with this token, in this session.
    #[inline]
    pub(in crate::remote) fn permits(units: u64, term: u64, token: u64, order: u64) -> Self {
        Self {
            units,
            term,
            token,
            order,
        }
    }

    /// Tokens of leased capacity, taken at `now`. They are spent, whatever becomes of the session.
    #[inline]
    pub(in crate::remote) fn leased(units: u64, now: Instant) -> Self {
        Self {
            units,
            term: UNCOUNTED + 1,
            token: now.ticks(),
            order: 0,
        }
    }
}

impl Ticket for RemoteTicket {
    const WORDS: usize = 4;
    fn write(&self, words: &mut [u64]) {
        words[..4].copy_from_slice(&[self.units, self.term, self.token, self.order]);
    }
    fn read(words: &[u64]) -> Self {
        Self {
            units: words[0],
            term: words[1],
            token: words[2],
            order: words[3],
        }
    }
}
