//! Tokens for resources that check whether who writes still holds a permit.

use std::fmt;

/// A fencing token: what is granted later, anywhere, has a greater one. Sent along with each request to a resource, which keeps a
/// [`FenceGuard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The token of the store's grant. In memory and in Redis it is as great as the time in microseconds since 1970, by the
    /// store's clock, so that it grows also where the store has lost its memory; in the others it grows as long as they keep
    /// their data.
    pub token: u64,
    /// The how-manieth admission of this process since that grant: above zero only with [`Prefetch`](super::Prefetch), where
    /// permits are used again without asking the store.
    pub order: u64,
    /// Nobody holds a permit with a lower token any more, as the store said last; zero where a store does not say it. With a
    /// limit of one it is the token itself.
    pub floor: u64,
}

/// What a resource keeps to turn away who has lost a permit and does not know: the highest [floor](Fence::floor) that it was told.
///
/// With a limit of one it turns away everybody but the last holder that it has heard of, and those after it. Where several hold
/// permits at a time, it turns away who was granted one before all of those who held one when the latest of its callers was
/// granted its own, or has last heard of the store: who has lost a permit that is younger than another one that is still held
/// passes. Where that is not enough, use several limiters of one permit each, and a guard for each.
///
/// It is as good as its memory: keep the [floor](Self::floor) with the data, and write both or neither.
///
/// ```
/// # use tollgate::remote::{Fence, FenceGuard};
/// let mut guard = FenceGuard::new();
/// let (first, second) = (Fence { token: 5, order: 0, floor: 5 }, Fence { token: 9, order: 0, floor: 9 });
/// guard.check(first)?;
/// guard.check(second)?;
/// // The first holder was suspended, its lease ran out, and now it goes on.
/// assert_eq!(guard.check(first).unwrap_err().floor, 9);
/// # Ok::<(), tollgate::remote::Stale>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceGuard {
    floor: u64,
}

impl FenceGuard {
    /// One that has heard of nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that goes on from a floor that was kept.
    pub fn from_floor(floor: u64) -> Self {
        Self { floor }
    }

    /// Below which tokens are turned away: what is to be kept.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Whether who shows `fence` may go on.
    ///
    /// # Errors
    /// [`Stale`] when it has lost its permit.
    pub fn check(&mut self, fence: Fence) -> Result<(), Stale> {
        // First: the process may have heard by now that the permit is lost, which only its task does not know.
        self.floor = self.floor.max(fence.floor);
        let (token, floor) = (fence.token, self.floor);
        if token < floor {
            Err(Stale { token, floor })
        } else {
            Ok(())
        }
    }
}

/// A permit was lost: all of those that were granted up to then are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stale {
    /// The token that was shown.
    pub token: u64,
    /// The lowest that is good.
    pub floor: u64,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a permit with the token {} was lost: those from {} on are held",
            self.token, self.floor
        )
    }
}

impl std::error::Error for Stale {}
