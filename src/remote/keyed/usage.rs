//! The usage of a key, leg by leg.

use super::legs::Legs;
use crate::core::status::{Description, State};
use crate::remote::backend::Rule;
use crate::remote::limiter::kind_of;
use crate::remote::step::LegUsage;
use std::sync::Arc;

/// What the store says of a key: see [`RemoteKey::usage`](super::RemoteKey::usage).
///
/// ```
/// # use tollgate::remote::{Key, KeyedLimits, Memory, Remote, RemoteLeg};
/// # use tollgate::status::State;
/// # use tollgate::ManualClock;
/// let clock = ManualClock::new();
/// let limits = KeyedLimits::new(1_000, "free", [RemoteLeg::permits("slots", 4)]);
/// let tenants = Remote::keyed(Key::new("tenants")?, limits).on(&clock).in_place(Memory::new(&clock))?;
/// clock.run(async {
///     let acme = tenants.get("acme")?;
///     let _permit = acme.acquire(3).await.unwrap();
///     let usage = acme.usage().await?;
///     let states: Vec<_> = usage.legs().map(|leg| leg.state).collect();
///     assert_eq!(states, [State::Permits { limit: 4, in_use: 3, waiting: 0 }]);
///     Ok::<(), tollgate::remote::RemoteError>(())
/// })?;
/// # Ok::<(), tollgate::remote::RemoteError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RemoteKeyUsage {
    legs: Arc<Legs>,
    usage: Arc<[LegUsage]>,
}

impl RemoteKeyUsage {
    pub(super) fn new(legs: &Arc<Legs>, usage: Arc<[LegUsage]>) -> Self {
        Self {
            legs: Arc::clone(legs),
            usage,
        }
    }

    /// Each leg, in order, with the limits that this process has. The waiters of a semaphore are counted by process.
    pub fn legs(&self) -> impl Iterator<Item = Description<'_>> {
        let legs = self.legs.counted.iter().zip(&*self.usage).enumerate();
        legs.map(|(position, (leg, usage))| {
            let state = match leg.rule {
                Rule::Permits { limit } => State::Permits {
                    limit,
                    in_use: usage.in_use,
                    waiting: usage.waiting,
                },
                Rule::Rate { quota } => {
                    let available = quota.burst_size().saturating_sub(usage.in_use);
                    quota.status(available, usage.after)
                }
                Rule::Window { limit, length } => State::Rate {
                    limit,
                    window: length,
                    available: limit.saturating_sub(usage.in_use),
                    next: usage.after,
                    reset: None,
                },
            };
            self.legs
                .describe(position, Description::new(kind_of(&leg.rule)).state(state))
        })
    }
}
