//! Limiters that a law can drive.

use crate::core::limiter::Limiter;
use crate::semaphore::Semaphore;
use std::sync::Arc;

/// A limiter with a number of permits that can be changed while it runs.
pub trait Resizable: Limiter {
    /// The number of permits.
    fn limit(&self) -> usize;

    /// Changes the number of permits at once, also below the number held.
    fn set_limit(&self, limit: usize);

    /// The number of permits held.
    fn in_use(&self) -> usize;

    /// Announces that the limit may become as large as `most`: an ask for no more is worth waiting.
    fn may_reach(&self, most: usize) {
        let _ = most;
    }
}

impl Resizable for Semaphore {
    fn limit(&self) -> usize {
        Semaphore::limit(self)
    }
    fn set_limit(&self, limit: usize) {
        Semaphore::set_limit(self, limit);
    }
    fn in_use(&self) -> usize {
        Semaphore::in_use(self)
    }
    fn may_reach(&self, most: usize) {
        Semaphore::may_reach(self, most);
    }
}

macro_rules! forward {
    ($l:ident, $ty:ty) => {
        impl<$l: Resizable + ?Sized> Resizable for $ty {
            fn limit(&self) -> usize {
                (**self).limit()
            }
            fn set_limit(&self, limit: usize) {
                (**self).set_limit(limit);
            }
            fn in_use(&self) -> usize {
                (**self).in_use()
            }
            fn may_reach(&self, most: usize) {
                (**self).may_reach(most);
            }
        }
    };
}
forward!(L, &L);
forward!(L, Arc<L>);
