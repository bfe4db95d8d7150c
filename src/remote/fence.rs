//! Fencing tokens: a resource checks by them that a writer still holds a permit.

use std::fmt;

/// A fencing token: a later grant, anywhere, has a greater one. Send it along with each request to a resource, which keeps a
/// [`FenceGuard`].
///
/// ```
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::{ManualClock};
/// # use std::sync::Arc;
/// let clock = ManualClock::new();
/// let store = Arc::new(Memory::new(&clock));
/// let exports = Remote::permits(Key::new("exports")?, 1).on(&clock).in_place(store)?;
/// let next = || clock.run(exports.acquire(1)).unwrap().fence();
/// let (first, second) = (next(), next());
/// assert!(first < second);
///
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The token of the store's grant. In memory and in Redis it is at least the time in microseconds since 1970, by the
    /// store's clock, so that it grows also where the store has lost its memory, unless the clock was set back meanwhile. In the
    /// others it grows as long as they keep their data.
    pub token: u64,
    /// The number of admissions by this process since that grant: above zero only with [`Prefetch`](super::Prefetch), which
    /// uses permits again without asking the store.
    pub order: u64,
    /// No permit with a lower token is held any more, according to the store's last reply; zero where a store does not report
    /// it. With a limit of one it is the token itself.
    pub floor: u64,
}

/// Turns away holders of lost permits at a resource, by the highest [floor](Fence::floor) that it was shown.
///
/// With a limit of one it turns away every holder before the last one that it has seen. With several holders at a time, it
/// knows the oldest permit held when its latest caller was granted its own, or last heard of the store. Holders of older
/// permits are refused. The holder of a lost permit that is younger than one still held passes. Where that is not enough,
/// use several limiters of one permit each, and a guard for each.
///
/// It is as good as its memory: keep the [floor](Self::floor) with the data, and write both or neither.
///
/// ```
/// # use tollgate::remote::{Fence, FenceGuard};
/// let mut guard = FenceGuard::default();
/// let (first, second) = (Fence { token: 5, order: 0, floor: 5 }, Fence { token: 9, order: 0, floor: 9 });
/// guard.check(first)?;
/// guard.check(second)?;
/// // The first holder was suspended, its lease ran out, and now it goes on.
/// assert_eq!(guard.check(first).unwrap_err().floor, 9);
/// # Ok::<(), tollgate::remote::Stale>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceGuard {
    /// The floor to be saved: lower tokens are refused.
    pub floor: u64,
}

impl FenceGuard {
    /// Checks that the holder of `fence` may go on.
    ///
    /// # Errors
    /// [`Stale`] when its permit was lost.
    pub fn check(&mut self, fence: Fence) -> Result<(), Stale> {
        // First: the process may know by now that the permit is lost, though its task does not.
        self.floor = self.floor.max(fence.floor);
        let (token, floor) = (fence.token, self.floor);
        if token < floor {
            Err(Stale { token, floor })
        } else {
            Ok(())
        }
    }
}

/// A permit was lost, as were all that were granted before `floor`.
///
/// ```
/// # use tollgate::remote::{Fence, FenceGuard};
/// let mut guard = FenceGuard { floor: 9 };
/// let stale = guard.check(Fence { token: 5, order: 0, floor: 5 }).unwrap_err();
/// assert_eq!((stale.token, stale.floor), (5, 9));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stale {
    /// The token that was shown.
    pub token: u64,
    /// The lowest valid token.
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
