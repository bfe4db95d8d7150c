//! The one seam to a runtime: it has a waiting future polled at an instant.
//!
//! Under a manual clock the clock itself holds the timer. Under the real clock it is tokio's, where a tokio runtime is
//! running. (One that was built without timers panics, as it does for tokio's own sleeps.) Elsewhere it is one thread
//! of our own that all such sleeps share. A clock of tokio's that a test has paused counts: the sleep ends when that has come to its
//! instant.

use super::clock::{Clock, Instant};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A timer for one absolute instant of a clock. Dropping it disarms it.
///
/// # Panics
/// When it is polled on the real clock in a tokio runtime that was built without timers, as tokio's own sleeps do.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::time::Sleep;
/// # use std::time::Duration;
/// # use std::pin::pin;
/// # use std::task::{Context, Waker};
/// let clock = ManualClock::new();
/// let mut sleep = pin!(clock.sleep(Duration::from_secs(60)));
/// let mut cx = Context::from_waker(Waker::noop());
/// assert!(sleep.as_mut().poll(&mut cx).is_pending());
/// clock.advance(Duration::from_secs(60));
/// assert!(sleep.as_mut().poll(&mut cx).is_ready());
/// ```
#[must_use = "a timer does nothing unless polled"]
pub struct Sleep {
    clock: Clock,
    at: Instant,
    armed: Armed,
    /// Whether the timer may be that of the runtime that is current when it is armed.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "there is no runtime"))]
    by_runtime: bool,
}

enum Armed {
    Not,
    Manual((u64, u64)),
    /// For an instant that is ours, or an earlier one: when it fires it is armed for the rest. An earlier timer than all others
    /// interrupts the runtime's wait, so one that is reset often stays as it is.
    #[cfg(feature = "tokio")]
    Tokio(Pin<Box<tokio::time::Sleep>>, Instant),
    Thread(super::thread_timer::Key),
}

impl Sleep {
    /// A timer for `at`.
    pub(crate) fn until(clock: &Clock, at: Instant) -> Self {
        Self {
            clock: clock.clone(),
            at,
            armed: Armed::Not,
            by_runtime: true,
        }
    }

    /// A timer for `at` that outlives any runtime.
    pub(crate) fn of_no_runtime(clock: &Clock, at: Instant) -> Self {
        let mut sleep = Self::until(clock, at);
        sleep.by_runtime = false;
        sleep
    }

    /// Arms it for another instant.
    pub fn reset(&mut self, at: Instant) {
        if at == self.at {
            return;
        }
        self.at = at;
        #[cfg(feature = "tokio")]
        if matches!(self.armed, Armed::Tokio(_, armed) if armed <= at) {
            return;
        }
        self.disarm();
    }

    /// It does not fire any more, until it is polled again.
    fn disarm(&mut self) {
        match std::mem::replace(&mut self.armed, Armed::Not) {
            Armed::Manual(key) => {
                if let Some(manual) = self.clock.manual() {
                    manual.disarm(key);
                }
            }
            Armed::Thread(key) => super::thread_timer::disarm(key),
            _ => {}
        }
    }

    /// Polls it at `now`, which may be ahead of the clock: as far as a paused clock of a runtime has come.
    pub(crate) fn poll_at(&mut self, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let waits = match &mut self.armed {
            _ if now >= self.at => false,
            Armed::Not => false,
            Armed::Manual(key) => (self.clock.manual()).is_some_and(|manual| manual.rearm(*key, cx.waker())),
            Armed::Thread(key) => super::thread_timer::rearm(*key, cx.waker()),
            #[cfg(feature = "tokio")]
            Armed::Tokio(sleep, armed) => {
                if sleep.as_mut().poll(cx).is_ready() {
                    // The runtime's clock and ours may differ by a fraction: sleep the rest. One that was paused counts.
                    let is_ahead = tokio::time::Instant::now().into_std() > std::time::Instant::now();
                    let now = now.max(if is_ahead { *armed } else { self.clock.now() });
                    self.armed = Armed::Not;
                    return self.poll_at(now, cx);
                }
                true
            }
        };
        if waits {
            return Poll::Pending;
        }
        self.disarm();
        if now >= self.at {
            return Poll::Ready(());
        }
        self.armed = self.arm(now, cx.waker());
        match self.armed {
            // Its instant has come meanwhile.
            Armed::Not => Poll::Ready(()),
            #[cfg(feature = "tokio")]
            Armed::Tokio(..) => self.poll_at(now, cx),
            _ => Poll::Pending,
        }
    }

    fn arm(&self, now: Instant, waker: &Waker) -> Armed {
        if let Some(manual) = self.clock.manual() {
            return manual.arm(self.at, waker).map_or(Armed::Not, Armed::Manual);
        }
        let after = self.clock.between(now, self.at);
        #[cfg(feature = "tokio")]
        if self.by_runtime && super::runtime().is_some() {
            return Armed::Tokio(Box::pin(tokio::time::sleep(after)), self.at);
        }
        Armed::Thread(super::thread_timer::arm(after, waker))
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.poll_at(this.clock.now(), cx)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}
