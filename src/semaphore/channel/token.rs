//! The message that is the permit.

use super::home::Home;
use std::fmt;
use std::sync::Arc;

/// A permit of a [`ChannelSemaphore`](super::ChannelSemaphore) as it comes out of the channel: what its
/// [`receiver`](super::ChannelSemaphore::receiver) receives.
///
/// Dropping it gives the permit back, wherever that happens: at the end of the work, in a branch that did not want it,
/// or while unwinding. It borrows nothing, and it may outlive the semaphore.
#[must_use = "dropping a token gives the permit back"]
pub struct ChannelToken {
    /// Empty once it has been used up.
    home: Option<Arc<Home>>,
}

impl ChannelToken {
    pub(super) fn of(home: &Arc<Home>) -> Self {
        Self {
            home: Some(Arc::clone(home)),
        }
    }

    /// Ends the token without giving anything back: somebody else now counts what it stood for.
    pub(super) fn dissolve(mut self) {
        self.home = None;
    }

    /// Never gives the permit back: the limit is one less from now on.
    pub fn forget(mut self) {
        if let Some(home) = self.home.take() {
            home.lose(1);
        }
    }
}

impl Drop for ChannelToken {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give_back(1);
        }
    }
}

impl fmt::Debug for ChannelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelToken").finish_non_exhaustive()
    }
}
