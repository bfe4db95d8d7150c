//! The one seam to a runtime: it has a waiting future polled at an instant.
//!
//! Under a manual clock the clock itself holds the timer. Under the real clock it is tokio's, where a tokio runtime is
//! running. (One that was built without timers panics, as it does for tokio's own sleeps.) Elsewhere it is one thread
//! of our own that all such sleeps share.

use super::clock::{Clock, Instant};
use std::pin::Pin;
use std::task::{Context, Poll};

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
/// let mut sleep = pin!(Sleep::until(&clock, clock.after(clock.now(), Duration::from_secs(60))));
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

/// The time by which a timer of the runtime may fire earlier than ours.
#[cfg(feature = "tokio")]
const FRACTION: std::time::Duration = std::time::Duration::from_millis(2);

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
    pub fn until(clock: &Clock, at: Instant) -> Self {
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

    /// The instant it is armed for.
    pub fn deadline(&self) -> Instant {
        self.at
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
    pub(crate) fn disarm(&mut self) {
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

    fn poll_at(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = self.clock.now();
        if now >= self.at {
            self.disarm();
            return Poll::Ready(());
        }
        match &mut self.armed {
            Armed::Not => self.arm(now, cx),
            Armed::Manual(key) => {
                let Some(manual) = self.clock.manual() else {
                    unreachable!("a manual key comes from a manual clock")
                };
                if manual.rearm(*key, cx.waker()) {
                    Poll::Pending
                } else {
                    self.armed = Armed::Not;
                    self.arm(now, cx)
                }
            }
            #[cfg(feature = "tokio")]
            Armed::Tokio(sleep, armed) => match sleep.as_mut().poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => {
                    // The runtime's clock and ours may differ by a fraction: sleep the rest. A clock of tokio's that is
                    // paused runs ahead of real time: then the rest is slept elsewhere.
                    let (armed, now) = (*armed, self.clock.now());
                    self.armed = Armed::Not;
                    self.by_runtime &= self.clock.between(now, armed) <= FRACTION;
                    self.arm(now, cx)
                }
            },
            Armed::Thread(key) => {
                if super::thread_timer::rearm(*key, cx.waker()) {
                    Poll::Pending
                } else {
                    self.armed = Armed::Not;
                    self.arm(now, cx)
                }
            }
        }
    }

    fn arm(&mut self, now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if now >= self.at {
            return Poll::Ready(());
        }
        if let Some(manual) = self.clock.manual() {
            return match manual.arm(self.clock.shows(self.at), cx.waker()) {
                Some(key) => {
                    self.armed = Armed::Manual(key);
                    Poll::Pending
                }
                None => Poll::Ready(()),
            };
        }
        let after = self.clock.between(now, self.at);
        #[cfg(feature = "tokio")]
        if self.by_runtime && !super::manual::runs_here() && tokio::runtime::Handle::try_current().is_ok() {
            let mut sleep = Box::pin(tokio::time::sleep(after));
            return match sleep.as_mut().poll(cx) {
                Poll::Ready(()) if self.clock.now() >= self.at => Poll::Ready(()),
                Poll::Ready(()) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                Poll::Pending => {
                    self.armed = Armed::Tokio(sleep, self.at);
                    Poll::Pending
                }
            };
        }
        self.armed = Armed::Thread(super::thread_timer::arm(after, cx.waker()));
        Poll::Pending
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().poll_at(cx)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}
