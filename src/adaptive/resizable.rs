//! What a law can drive.

use crate::limiter::Limiter;
use crate::semaphore::Semaphore;
use std::sync::Arc;

/// A limiter whose permits are counted, and whose count can be changed while it runs.
pub trait Resizable: Limiter {
    /// How many permits there are.
    fn limit(&self) -> usize;

    /// Changes how many there are, at once, also below what is held.
    fn set_limit(&self, limit: usize);

    /// How many are held.
    fn in_use(&self) -> usize;
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
        }
    };
}
forward!(L, &L);
forward!(L, Arc<L>);
