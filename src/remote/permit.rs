//! Methods of remote permits.

use super::backend::Backend;
use super::fence::Fence;
use super::limiter::Remote;
use super::lost::Lost;
use crate::core::permit::Permit;
use std::sync::Arc;
use std::time::Duration;

/// A permit that borrows its [`Remote`]. Dropping it tells the driver to return the units.
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

            /// The fencing token of a permit. `None` for tokens of a rate, which cannot be lost, and for admissions while the
            /// store was unavailable, which are not counted.
            pub fn fence(&self) -> Option<Fence> {
                let ticket = *self.ticket()?;
                let shared = &self.limiter().shared;
                shared.with(|client| client.fence(&ticket))
            }

            /// True when the lease has ended, or the store has lost it: these units may have another holder. Tokens of a rate
            /// are never lost, nor are admissions while the store was unavailable.
            pub fn is_lost(&self) -> bool {
                let Some(&ticket) = self.ticket() else { return false };
                let shared = &self.limiter().shared;
                let now = shared.clock.now();
                shared.with(|client| client.is_lost(&ticket, now))
            }

            /// Ends when [`is_lost`](Self::is_lost) becomes true; never, if it never does. It may outlive the permit.
            ///
            /// # Cancel safety
            /// Dropping it changes nothing.
            pub fn lost(&self) -> Lost<B> {
                Lost::new(Arc::clone(&self.limiter().shared), self.ticket().copied())
            }

            /// How long this is valid unless it is renewed; zero when it is lost. `None` if it does not expire.
            pub fn good_for(&self) -> Option<Duration> {
                let ticket = *self.ticket()?;
                let shared = &self.limiter().shared;
                let now = shared.clock.now();
                shared.with(|client| {
                    if client.is_lost(&ticket, now) {
                        return Some(Duration::ZERO);
                    }
                    let deadline = client.expires_at(&ticket)?;
                    Some(shared.clock.between(now, deadline))
                })
            }
        }
    };
}
permits!(Permit<&'a Remote<B>>, 'a);
permits!(Permit<Arc<Remote<B>>>);
