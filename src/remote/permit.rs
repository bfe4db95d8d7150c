//! What the permits of a remote limiter can say of themselves.

use super::backend::Backend;
use super::fence::Fence;
use super::limiter::Remote;
use super::lost::Lost;
use crate::core::permit::Permit;
use std::sync::Arc;
use std::time::Duration;

/// A permit that borrows its [`Remote`]. Dropping it leaves word for the driver, who gives the units back.
pub type RemotePermit<'a, B> = Permit<&'a Remote<B>>;

/// A permit that owns a handle of its [`Remote`].
pub type OwnedRemotePermit<B> = Permit<Arc<Remote<B>>>;

macro_rules! permits {
    ($permit:ty $(, $life:lifetime)?) => {
        impl<$($life,)? B: Backend> $permit {
            /// How many units this holds.
            pub fn units(&self) -> u64 {
                self.ticket().map_or(0, |ticket| ticket.units)
            }

            /// The fencing token of a permit. `None` for what a rate has given, which nobody can lose, and for what was
            /// admitted while the store was away, which nobody has counted.
            pub fn fence(&self) -> Option<Fence> {
                let ticket = (*self.ticket())?;
                let shared = &self.limiter().shared;
                shared.with(|desk| desk.fence(&ticket))
            }

            /// True when the lease has run out, or the store has lost it: somebody else may hold these units. What a rate has
            /// given is never lost, and neither is what was admitted while the store was away.
            pub fn is_lost(&self) -> bool {
                let Some(ticket) = *self.ticket() else { return false };
                let shared = &self.limiter().shared;
                let now = shared.clock.now();
                shared.with(|desk| desk.is_lost(&ticket, now))
            }

            /// Ends when [`is_lost`](Self::is_lost) becomes true; never, if it never does. It may outlive the permit.
            ///
            /// # Cancel safety
            /// Dropping it changes nothing.
            pub fn lost(&self) -> Lost<B> {
                Lost::new(Arc::clone(&self.limiter().shared), *self.ticket())
            }

            /// How long this is good for unless it is renewed; zero when it is lost. `None` for what does not run out.
            pub fn good_for(&self) -> Option<Duration> {
                let ticket = (*self.ticket())?;
                let shared = &self.limiter().shared;
                let now = shared.clock.now();
                shared.with(|desk| {
                    if desk.is_lost(&ticket, now) {
                        return Some(Duration::ZERO);
                    }
                    let deadline = desk.runs_out(&ticket)?;
                    Some(shared.clock.between(now, deadline))
                })
            }
        }
    };
}
permits!(Permit<&'a Remote<B>>, 'a);
permits!(Permit<Arc<Remote<B>>>);
