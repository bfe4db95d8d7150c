//! How fast a service serves while it turns others away.

use crate::time::Instant;

/// The slower of the latest two stretches of overload. One ends when enough have been served, and counts only if somebody was
/// turned away all the time: a service that is not asked for all it can do says nothing of how much that is.
#[derive(Debug)]
pub(super) struct ServiceRate {
    /// In ticks: overload is over when nobody was turned away for so long.
    gap: u64,
    /// When somebody was turned away last.
    last: Option<Instant>,
    /// When the stretch began, and how many had been served by then.
    since: (Instant, u64),
    /// How long it took to serve one, in ticks, the newer first.
    took: [Option<u64>; 2],
}

/// How many make a stretch at least: an eighth more or less is chance.
const STRETCH: u64 = 64;
/// And so many of them a gap: what is handed out at one instant is no rate.
const IN_A_GAP: u64 = 16;

impl ServiceRate {
    pub(super) fn new(gap: u64) -> Self {
        Self {
            gap,
            last: None,
            since: (Instant::ZERO, 0),
            took: [None; 2],
        }
    }

    /// At `now` somebody was turned away, and `served` have been served in all. `awaited` are those who were told to come later:
    /// where there are such, the overload lasts, though nobody asks meanwhile. No stretch reaches across such a silence.
    pub(super) fn turned_away(&mut self, now: Instant, served: u64, awaited: bool) {
        let (since, before) = self.since;
        let goes_on = self.last.is_some_and(|last| now.ticks_since(last) <= self.gap);
        self.last = self.last.max(Some(now));
        let count = served.saturating_sub(before);
        if !goes_on {
            if !awaited || seeded!("room_forgets_its_rate") {
                self.took = [None; 2];
            }
            self.since = (now, served);
        } else if count >= STRETCH && now.ticks_since(since) >= self.gap / IN_A_GAP {
            self.took = [Some(now.ticks_since(since).div_ceil(count)), self.took[0]];
            self.since = (now, served);
        }
    }

    /// How long it takes to serve one, in ticks; none before two stretches of this overload have been seen.
    pub(super) fn interval(&self) -> Option<u64> {
        let [newer, older] = self.took;
        Some(newer?.max(older?))
    }
}

#[cfg(test)]
mod tests {
    use super::{STRETCH, ServiceRate};
    use crate::time::Instant;

    /// One is served every `ticks`, and one is turned away as often, from `from` on, so many times. When it ends.
    fn overload(meter: &mut ServiceRate, from: (u64, u64), ticks: u64, times: u64) -> (u64, u64) {
        let (mut now, mut served) = from;
        for _ in 0..times {
            (now, served) = (now + ticks, served + 1);
            meter.turned_away(Instant::from_ticks(now), served, false);
        }
        (now, served)
    }

    #[test]
    fn the_slower_of_two_stretches_counts() {
        let mut meter = ServiceRate::new(1_000);
        let at = overload(&mut meter, (0, 0), 10, 2 * STRETCH);
        assert_eq!(
            meter.interval(),
            None,
            "the first begins at the first who is turned away"
        );
        let at = overload(&mut meter, at, 10, 1);
        assert_eq!(meter.interval(), Some(10));
        let at = overload(&mut meter, at, 30, STRETCH);
        assert_eq!(meter.interval(), Some(30), "slower at once");
        let at = overload(&mut meter, at, 10, STRETCH);
        assert_eq!(meter.interval(), Some(30));
        let _ = overload(&mut meter, at, 10, STRETCH);
        assert_eq!(meter.interval(), Some(10), "faster when that has lasted");
    }

    #[test]
    fn a_pause_ends_the_overload() {
        let mut meter = ServiceRate::new(1_000);
        let (now, served) = overload(&mut meter, (0, 0), 10, 3 * STRETCH);
        assert_eq!(meter.interval(), Some(10));
        meter.turned_away(Instant::from_ticks(now + 1_001), served + 5_000, false);
        assert_eq!(meter.interval(), None);
    }

    /// They obey, and so nobody asks for a while: what is served in that time is not counted, and what is known stays known.
    #[test]
    fn a_pause_in_which_somebody_is_awaited_ends_a_stretch() {
        let mut meter = ServiceRate::new(1_000);
        let (mut now, served) = overload(&mut meter, (0, 0), 10, 3 * STRETCH);
        now += 1_001;
        meter.turned_away(Instant::from_ticks(now), served + 5_000, true);
        assert_eq!(meter.interval(), Some(10));
        let at = overload(&mut meter, (now, served + 5_000), 20, STRETCH - 1);
        assert_eq!(meter.interval(), Some(10), "the stretch begins after the pause");
        let _ = overload(&mut meter, at, 20, 1);
        assert_eq!(meter.interval(), Some(20));
    }

    #[test]
    fn nobody_served_is_no_rate() {
        let mut meter = ServiceRate::new(1_000);
        for now in 0..10_000 {
            meter.turned_away(Instant::from_ticks(now), 0, false);
        }
        assert_eq!(meter.interval(), None);
    }
}
