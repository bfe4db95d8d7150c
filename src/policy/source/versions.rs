//! Versions that the program itself hands in.

use super::{PolicySource, SourceError};
use crate::policy::spec::PolicySpec;
use crate::sync::wake::wake;
use parking_lot::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Versions that are handed in by a [`VersionSender`]. Of several that are handed in between two looks, the
/// last one counts.
///
/// ```
/// # use tollgate::policy::source::Versions;
/// # use tollgate::policy::spec::{LegSpec, PolicySpec, LegRule};
/// # use tollgate::ManualClock;
/// let clock = ManualClock::new();
/// let mut spec = PolicySpec::new([LegSpec::new("in flight", LegRule::semaphore(1))]);
/// let policy = spec.build(&clock)?;
/// let (sender, versions) = Versions::new();
/// spec.legs[0].rule = LegRule::semaphore(5);
/// sender.push(spec);
/// drop(sender);
/// let mut said = Vec::new();
/// clock.run(policy.follow(versions, |event| said.push(event.to_string())));
/// assert_eq!(said, ["version 2: `in flight` rule 1 -> 5"]);
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
pub struct Versions<S = PolicySpec>(Arc<Mutex<Slot<S>>>);

/// Hands versions in. Clones hand in to the same [`Versions`], which end when the last one has gone.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::policy::source::Versions;
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySpec};
/// let spec = |limit| PolicySpec::new([LegSpec::new("slots", LegRule::semaphore(limit))]);
/// let clock = ManualClock::new();
/// let policy = spec(1).build(&clock)?;
/// let (sender, versions) = Versions::new();
/// sender.push(spec(2));
/// sender.push(spec(3));
/// drop(sender); // Ends the versions.
/// clock.run(policy.follow(versions, |_| ()));
/// assert_eq!(policy.limiter().leg("slots").and_then(|leg| leg.capacity), Some(3));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
pub struct VersionSender<S = PolicySpec>(Arc<Mutex<Slot<S>>>);

struct Slot<S> {
    version: Option<S>,
    senders: usize,
    waker: Option<Waker>,
}

impl<S> Versions<S> {
    /// The two ends.
    #[allow(clippy::new_ret_no_self)]
    pub fn new() -> (VersionSender<S>, Self) {
        let slot = Slot {
            version: None,
            senders: 1,
            waker: None,
        };
        let slot = Arc::new(Mutex::new(slot));
        (VersionSender(Arc::clone(&slot)), Self(slot))
    }
}

impl<S> VersionSender<S> {
    /// Hands in a version. It replaces one that has not been taken yet, and is checked when it is put in force.
    pub fn push(&self, version: S) {
        let (old, waker) = {
            let mut slot = self.0.lock();
            (slot.version.replace(version), slot.waker.take())
        };
        drop(old);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<S> Clone for VersionSender<S> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<S> Drop for VersionSender<S> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = self.0.lock();
            slot.senders -= 1;
            if slot.senders > 0 { None } else { slot.waker.take() }
        };
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}

impl<S: Send> PolicySource<S> for Versions<S> {
    async fn next(&mut self) -> Option<Result<S, SourceError>> {
        let version = poll_fn(|cx| {
            // Cloned outside the lock, and so is the old one dropped: both may run foreign code.
            let waker = cx.waker().clone();
            let mut slot = self.0.lock();
            if let Some(version) = slot.version.take() {
                drop(slot);
                return Poll::Ready(Some(version));
            }
            if slot.senders == 0 {
                drop(slot);
                return Poll::Ready(None);
            }
            let old = slot.waker.replace(waker);
            drop(slot);
            drop(old);
            Poll::Pending
        });
        version.await.map(Ok)
    }
}

impl<S> fmt::Debug for Versions<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Versions").finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for VersionSender<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VersionSender").finish_non_exhaustive()
    }
}
