//! The time of a run: virtual, or real and a multiple of the trace's speed.

use std::time::Duration;
use tollgate::{Clock, Instant, ManualClock, Quota, QuotaError};

/// The time of one run. Cheap to clone.
#[derive(Clone)]
pub struct Pace {
    pub clock: Clock,
    origin: Instant,
    pub speed: u32,
    pub live: bool,
}

impl Pace {
    /// Virtual time, as fast as it can be computed: nothing is scaled.
    pub fn virtual_time(clock: &ManualClock) -> Self {
        Self {
            clock: clock.clock().clone(),
            origin: Instant::ZERO,
            speed: 1,
            live: false,
        }
    }

    /// Real time, `speed` times as fast as the trace, from now on.
    pub fn live(speed: u32) -> Self {
        let clock = Clock::real();
        Self {
            origin: clock.now(),
            clock,
            speed,
            live: true,
        }
    }

    /// How long the run has gone on.
    pub fn elapsed(&self) -> Duration {
        self.since(self.clock.now())
    }

    /// How long it had gone on at `instant`.
    pub fn since(&self, instant: Instant) -> Duration {
        self.clock.between(self.origin, instant)
    }

    /// A duration of the trace as one of the run.
    pub fn scaled(&self, duration: Duration) -> Duration {
        duration / self.speed
    }

    /// A rate of the trace as one of the run: as many, in a shorter time.
    pub fn quota(&self, quota: Quota) -> Result<Quota, QuotaError> {
        if quota.is_zero() || quota.is_unlimited() {
            return Ok(quota);
        }
        let scaled = Quota::new(quota.count(), self.scaled(quota.period()))?.with_burst(quota.burst_size())?;
        Ok(if quota.is_by_interval() {
            scaled.by_interval()
        } else {
            scaled
        })
    }

    /// Sleeps for a duration of the trace.
    pub async fn sleep(&self, duration: Duration) {
        self.clock.sleep(self.scaled(duration)).await;
    }

    /// Sleeps until an instant of the trace.
    pub async fn sleep_until(&self, since_start: Duration) {
        self.clock
            .sleep_until(self.clock.after(self.origin, self.scaled(since_start)))
            .await;
    }

    /// Runs a closure that blocks the thread. Live, the other tasks go on elsewhere meanwhile.
    pub fn blocking<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.live {
            tokio::task::block_in_place(work)
        } else {
            work()
        }
    }
}
