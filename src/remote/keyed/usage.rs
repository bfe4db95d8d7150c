//! The usage of a key, leg by leg.

use super::legs::Legs;
use crate::core::status::{State, Status};
use crate::remote::backend::Rule;
use crate::remote::step::LegUsage;
use std::sync::Arc;

/// What the store says of a key: see [`RemoteKey::usage`](super::RemoteKey::usage).
///
/// ```
/// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySpec};
/// # use tollgate::remote::{Key, Memory, Remote};
/// # use tollgate::status::State;
/// # use tollgate::ManualClock;
/// let clock = ManualClock::new();
/// let free = PolicySpec::new([LegSpec::new("slots", LegRule::semaphore(4))]);
/// let spec = KeyedSpec::new(1_000, "free", free);
/// let tenants = Remote::keyed(Key::new("tenants")?, spec).on(&clock).in_place(Memory::new(&clock))?;
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

    /// The status of each leg, in order, with the limits that this process has. The waiters of a semaphore are counted by process.
    pub fn legs(&self) -> impl Iterator<Item = Status<'_>> {
        let legs = self.legs.counted.iter().zip(&*self.usage).enumerate();
        legs.filter_map(|(position, (leg, usage))| {
            let (kind, state) = match leg.rule {
                Rule::Permits { limit } => {
                    let state = State::Permits {
                        limit,
                        in_use: usage.in_use,
                        waiting: usage.waiting,
                    };
                    ("remote_semaphore", state)
                }
                Rule::Rate { quota } => {
                    let available = quota.burst_size().saturating_sub(usage.in_use);
                    ("remote_rate", quota.status(available, usage.after)?)
                }
                Rule::Window { limit, length } => {
                    let state = State::Rate {
                        limit,
                        window: length,
                        available: limit.saturating_sub(usage.in_use),
                        next: usage.after,
                        reset: None,
                    };
                    ("remote_window", state)
                }
            };
            let status = Status::new(self.legs.name(position), kind, state);
            Some(match self.legs.cost(position) {
                Some(cost) => status.per(cost),
                None => status,
            })
        })
    }
}
