//! A process that takes from a rate and from a window all the time, and records its grants.

use super::contender::Plan;
use super::history::{Event, Writer};
use super::instant::{now, until};
use super::tenants::{Leg, Tenant};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A limit by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Meter {
    Rate,
    Window,
    /// Of the tenant with this number.
    Leg(u32, Leg),
}

pub(crate) const METERS: [Meter; 2] = [Meter::Rate, Meter::Window];

/// The tokens per second, and the burst.
pub(crate) const RATE: u64 = 10;
pub(crate) const BURST: u64 = 10;
/// The limit of the window.
pub(crate) const LIMIT: u64 = 10;
pub(crate) const LENGTH: Duration = Duration::from_secs(2);

/// What a limit by time gives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    Rate { per_second: u64, burst: u64 },
    Window { limit: u64, length: Duration },
}

impl Meter {
    pub(crate) fn bound(self) -> Bound {
        match self {
            Self::Rate => Bound::Rate {
                per_second: RATE,
                burst: BURST,
            },
            Self::Window => Bound::Window {
                limit: LIMIT,
                length: LENGTH,
            },
            Self::Leg(key, leg) => Tenant::of(key).bound(leg),
        }
    }
}

/// A rate or a window across machines, as the rig uses it.
pub(crate) trait Tap: Send + Sync + 'static {
    /// Waits for one unit.
    fn take(&self) -> impl Future<Output = Result<(), String>> + Send;

    /// Returns when the store knows that this process takes no more.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Takes from all of them until the plan's end.
pub(crate) async fn spend<T: Tap>(plan: &Plan, writer: &Arc<Writer>, taps: Vec<(Meter, T)>) {
    let tasks = taps.into_iter().map(|(meter, tap)| {
        let (plan, writer) = (plan.clone(), Arc::clone(writer));
        tokio::spawn(async move {
            while now() < plan.end {
                let sent = now();
                // A grant that takes longer is not missed: the checker looks for times without any grant.
                match timeout(until(plan.end) + plan.ttl, tap.take()).await {
                    Ok(Ok(())) => writer.write(&Event::Spent {
                        meter,
                        process: plan.process,
                        sent,
                        received: now(),
                    }),
                    Ok(Err(_)) => sleep(Duration::from_millis(20)).await,
                    Err(_) => break,
                }
            }
            tap.close().await;
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("the task ends");
    }
}
