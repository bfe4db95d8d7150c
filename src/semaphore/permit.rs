//! What the permits of a semaphore can do beyond being given back.

use super::atomic::Semaphore;
use super::limiter::SemaphoreTicket;
use crate::permit::Permit;
use std::sync::Arc;

/// A permit that borrows its [`Semaphore`]. Dropping it gives the permits back.
pub type SemaphorePermit<'a> = Permit<&'a Semaphore>;

/// A permit that owns a handle of its [`Semaphore`].
pub type OwnedSemaphorePermit = Permit<Arc<Semaphore>>;

macro_rules! permits {
    ($permit:ty $(, $life:lifetime)?) => {
        impl$(<$life>)? $permit {
            /// How many permits this holds.
            #[inline]
            pub fn num_permits(&self) -> usize {
                self.ticket().map_or(0, |ticket| ticket.permits())
            }

            /// Takes over the permits of `other`.
            ///
            /// # Panics
            /// If `other` is of another semaphore.
            #[track_caller]
            pub fn merge(&mut self, mut other: Self) {
                assert!(
                    std::ptr::eq::<Semaphore>(&**self.limiter(), &**other.limiter()),
                    "merging permits from different semaphore instances"
                );
                let taken = other.ticket_mut().take().map_or(0, |ticket| ticket.permits());
                let held = self.num_permits();
                let mut sum = held + taken;
                if seeded!("permit_merge_wraps") {
                    sum = sum as u32 as usize;
                }
                *self.ticket_mut() = Some(SemaphoreTicket::new(sum));
            }

            /// Splits `n` permits off, or returns `None` when this holds fewer.
            pub fn split(&mut self, n: usize) -> Option<Self> {
                let left = self.num_permits().checked_sub(n)?;
                *self.ticket_mut() = Some(SemaphoreTicket::new(left));
                Some(Permit::new(self.limiter().clone(), SemaphoreTicket::new(n)))
            }
        }
    };
}
permits!(Permit<&'a Semaphore>, 'a);
permits!(Permit<Arc<Semaphore>>);

impl<'a> Permit<&'a Semaphore> {
    /// The semaphore that this is a permit of.
    pub fn semaphore(&self) -> &'a Semaphore {
        self.limiter()
    }
}

impl Permit<Arc<Semaphore>> {
    /// The semaphore that this is a permit of.
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        self.limiter()
    }
}
