//! The store's own clock, where it keeps one: read now and then, and extrapolated from there.

use crate::document::{Clock, Time};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// A reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Of the clock by which the value is dated, if that can still be read.
    pub(crate) said: Option<Time>,
    /// Of the clock for dates from now on: the same, unless that ends soon.
    pub(crate) next: Time,
}

/// The clock of a key, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct StoreClock {
    /// When it was last asked for.
    asked: Option<Instant>,
    read: Option<Read>,
}

#[derive(Debug)]
struct Read {
    time: Time,
    /// When it was asked for, by two clocks: the monotonic one may stand still while the machine sleeps.
    sent: (Instant, SystemTime),
    answered: Instant,
    /// Nothing has been written since.
    is_last: bool,
}

/// After this it is read again along with the value: clocks drift apart.
const OLD: Duration = Duration::from_secs(60);
/// How soon it is read again when another process dates by another clock.
const SOON: Duration = Duration::from_secs(1);
/// Clocks drift apart by at most this part of the time that passes.
const APART: u32 = 64;

impl StoreClock {
    /// Whether it should be read, for a document dated by this clock.
    pub(super) fn is_due(&self, clock: Option<Clock>) -> bool {
        let same = clock.is_none() || clock == self.read.as_ref().map(|read| read.time.clock);
        let lasts = if same { OLD } else { SOON };
        self.asked.is_none_or(|asked| asked.elapsed() >= lasts)
    }

    /// Records that it is asked for.
    pub(super) fn ask(&mut self) -> (Instant, SystemTime) {
        let now = Instant::now();
        self.asked = Some(now);
        (now, SystemTime::now())
    }

    /// Records the answer to a reading asked for at `sent`.
    pub(super) fn read(&mut self, sent: (Instant, SystemTime), time: Time) {
        self.read = Some(Read {
            time,
            sent,
            answered: Instant::now(),
            is_last: true,
        });
    }

    /// Records that the value was changed after the reading.
    pub(super) fn note_change(&mut self) {
        if let Some(read) = &mut self.read {
            read.is_last = false;
        }
    }

    /// The extrapolated time; `None` if it was never read, or if the wall clock here was set back.
    pub(super) fn time(&self) -> Option<Time> {
        let Read {
            time,
            sent: (steady, wall),
            answered,
            is_last,
        } = self.read.as_ref()?;
        let least = answered.elapsed();
        let most = wall.elapsed().ok()?.max(steady.elapsed());
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let now = time.now.saturating_add(micros(least - least / APART));
        let by = time.by.saturating_add(micros(most + most / APART)).saturating_add(1);
        let written = if *is_last { time.written } else { by };
        let now = now.min(by);
        let time = Time {
            now,
            by,
            written,
            ..*time
        };
        Some(time).filter(Time::holds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: Time = Time {
        clock: (7, 1),
        now: 5_000_000,
        by: 6_000_000,
        written: 2_000_000,
    };

    #[tokio::test(start_paused = true)]
    async fn a_clock_is_reckoned_on_within_what_clocks_run_apart() {
        let mut store_clock = StoreClock::default();
        assert!(store_clock.is_due(None) && store_clock.time().is_none());
        let sent = store_clock.ask();
        tokio::time::advance(Duration::from_secs(1)).await;
        store_clock.read(sent, SAID);
        assert!(!store_clock.is_due(Some((7, 1))));
        tokio::time::advance(Duration::from_secs(63)).await;
        let time = store_clock.time().unwrap();
        assert_eq!(
            (time.now, time.by),
            (5_000_000 + 63_000_000 * 63 / 64, 6_000_000 + 65_000_001)
        );
        assert_eq!((time.clock, time.written), (SAID.clock, SAID.written));
        assert!(store_clock.is_due(None));
        store_clock.note_change();
        assert_eq!(store_clock.time().map(|time| time.written), Some(time.by));
    }

    #[tokio::test(start_paused = true)]
    async fn a_document_dated_by_another_clock_has_it_read_sooner() {
        let mut store_clock = StoreClock::default();
        let sent = store_clock.ask();
        store_clock.read(sent, SAID);
        tokio::time::advance(SOON).await;
        assert!(!store_clock.is_due(None) && !store_clock.is_due(Some((7, 1))) && store_clock.is_due(Some((7, 2))));
    }

    /// A machine that slept has not measured it by the monotonic clock, but by the wall clock. A wall clock that was set back
    /// says nothing.
    #[test]
    fn time_asleep_counts_for_the_latest_bound() {
        let hour = Duration::from_secs(3_600);
        let mut store_clock = StoreClock::default();
        store_clock.read((Instant::now(), SystemTime::now() - hour), SAID);
        let time = store_clock.time().unwrap();
        assert!(time.now < 6_000_000 && time.by > 3_600_000_000, "{time:?}");
        store_clock.read((Instant::now(), SystemTime::now() + hour), SAID);
        assert_eq!(store_clock.time(), None);
    }
}
