//! What one admission holds.

use crate::core::ticket::Ticket;

/// What one admission holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteTicket {
    pub(in crate::remote) units: u64,
    /// Under which session, by number; or [`UNCOUNTED`], or [`SHARED`].
    pub(in crate::remote) term: u64,
    /// Of a permit: the token of the last grant, and the how-manieth admission since it was. Of tokens: the moment from which on
    /// they are missing, and until when they would have been kept.
    pub(in crate::remote) token: u64,
    pub(in crate::remote) order: u64,
}

/// The term of an admission that nobody counts.
pub(in crate::remote) const UNCOUNTED: u64 = 0;
/// The term of an admission out of this process's own share.
pub(in crate::remote) const SHARED: u64 = u64::MAX;

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
