//! The rate at which a service serves while it refuses other requests.

/// The slower of the latest two runs under overload. A run ends when enough have been served. It counts only if
/// requests were refused all the time: a service below its capacity says nothing of its capacity.
#[derive(Debug)]
pub(super) struct ServiceRate {
    /// In nanoseconds: overload is over after this long without a refusal.
    gap: u64,
    /// The latest refusal.
    last: Option<u64>,
    /// The start of the run, and the number served by then.
    since: (u64, u64),
    /// The time to serve one, in nanoseconds, the newer run first.
    took: [Option<u64>; 2],
}

/// The least length of a run: an error of an eighth is chance.
const RUN: u64 = 64;
/// A run lasts at least this part of a gap: a batch at one instant is no rate.
const IN_A_GAP: u64 = 16;

impl ServiceRate {
    pub(super) fn new(gap: u64) -> Self {
        Self {
            gap,
            last: None,
            since: (0, 0),
            took: [None; 2],
        }
    }

    /// At `now` a request was refused, and `served` have been served in all. `awaited` says that promised instants are
    /// still to come: then the overload lasts, though no client asks meanwhile. No run reaches across such a silence.
    pub(super) fn refused(&mut self, now: u64, served: u64, awaited: bool) {
        let (since, before) = self.since;
        let goes_on = self.last.is_some_and(|last| now.saturating_sub(last) <= self.gap);
        self.last = self.last.max(Some(now));
        let count = served.saturating_sub(before);
        if !goes_on {
            if !awaited {
                self.took = [None; 2];
            }
            self.since = (now, served);
        } else if count >= RUN && now.saturating_sub(since) >= self.gap / IN_A_GAP {
            self.took = [Some(now.saturating_sub(since).div_ceil(count)), self.took[0]];
            self.since = (now, served);
        }
    }

    /// The time to serve one, in nanoseconds; `None` before two runs of this overload.
    pub(super) fn interval(&self) -> Option<u64> {
        let [newer, older] = self.took;
        Some(newer?.max(older?))
    }
}

#[cfg(test)]
mod tests {
    use super::{RUN, ServiceRate};

    /// One is served and one refused every `apart` nanoseconds, from `from` on, `times` times. Returns the end.
    fn overload(meter: &mut ServiceRate, from: (u64, u64), apart: u64, times: u64) -> (u64, u64) {
        let (mut now, mut served) = from;
        for _ in 0..times {
            (now, served) = (now + apart, served + 1);
            meter.refused(now, served, false);
        }
        (now, served)
    }

    /// Given any refusals, then the rate is the slower of the latest two runs of the overload: each serves its number, lasts its part of a
    /// gap, and has no silence within; a silence ends the overload unless promised instants are still to come.
    #[test]
    fn a_rate_is_that_of_two_runs_without_a_silence() {
        crate::laws::holds([4, 5], |inputs| {
            let gap = 16 * (1 + inputs.number(1 << 30, 1));
            let mut meter = ServiceRate::new(gap);
            let (mut now, mut served) = (inputs.number(1 << 40, 0), inputs.number(1 << 30, 0));
            // Refusals since the last silence, and where the current run began among them.
            let (mut seen, mut from) = (Vec::<(u64, u64)>::new(), 0);
            let mut runs = Vec::<u64>::new();
            while inputs.goes_on() {
                now += inputs.number(1 << 20, 0) + inputs.one_of(&[0, gap / 16 - 1, gap / 16, gap, gap + 1]);
                served += inputs.number(40, 0) + inputs.one_of(&[0, RUN - 1, RUN]);
                let awaited = inputs.below(2) == 0;
                let is_silence = seen.last().is_none_or(|(last, _)| now > last + gap);
                if is_silence {
                    (seen, from) = (Vec::new(), 0);
                    if !awaited {
                        runs.clear();
                    }
                }
                seen.push((now, served));
                let (began, before) = seen[from];
                if served >= before + 64 && (now - began) * 16 >= gap {
                    // Rounded up.
                    runs.push((now - began + served - before - 1) / (served - before));
                    from = seen.len() - 1;
                }
                meter.refused(now, served, awaited);
                let latest = runs.iter().rev().take(2);
                let slower = latest.copied().max().filter(|_| runs.len() >= 2);
                assert_eq!(meter.interval(), slower, "{runs:?}");
            }
        });
    }

    #[test]
    fn the_slower_of_two_runs_counts() {
        let mut meter = ServiceRate::new(1_000);
        let at = overload(&mut meter, (0, 0), 10, 2 * RUN);
        assert_eq!(meter.interval(), None, "the first begins at the first refused caller");
        let at = overload(&mut meter, at, 10, 1);
        assert_eq!(meter.interval(), Some(10));
        let at = overload(&mut meter, at, 30, RUN);
        assert_eq!(meter.interval(), Some(30), "slower at once");
        let at = overload(&mut meter, at, 10, RUN);
        assert_eq!(meter.interval(), Some(30));
        let _ = overload(&mut meter, at, 10, RUN);
        assert_eq!(meter.interval(), Some(10), "faster when that has lasted");
    }

    #[test]
    fn a_pause_ends_the_overload() {
        let mut meter = ServiceRate::new(1_000);
        let (now, served) = overload(&mut meter, (0, 0), 10, 3 * RUN);
        assert_eq!(meter.interval(), Some(10));
        meter.refused(now + 1_001, served + 5_000, false);
        assert_eq!(meter.interval(), None);
    }

    /// The clients obey, so none asks for a while: service in that time is not counted, and the known rate stays.
    #[test]
    fn a_pause_with_promised_instants_ends_a_run() {
        let mut meter = ServiceRate::new(1_000);
        let (mut now, served) = overload(&mut meter, (0, 0), 10, 3 * RUN);
        now += 1_001;
        meter.refused(now, served + 5_000, true);
        assert_eq!(meter.interval(), Some(10));
        let at = overload(&mut meter, (now, served + 5_000), 20, RUN - 1);
        assert_eq!(meter.interval(), Some(10), "the stretch begins after the pause");
        let _ = overload(&mut meter, at, 20, 1);
        assert_eq!(meter.interval(), Some(20));
    }

    #[test]
    fn without_service_there_is_no_rate() {
        let mut meter = ServiceRate::new(1_000);
        for now in 0..10_000 {
            meter.refused(now, 0, false);
        }
        assert_eq!(meter.interval(), None);
    }
}
