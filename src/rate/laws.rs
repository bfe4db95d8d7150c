//! The laws of the meters: each beside a reference that keeps all that was taken, by time.

use super::drain::{Drain, GRAIN, grains};
use super::fixed_window::{self, Even, FixedMeter};
use super::inherit::{Inherit, Withheld};
use super::leaky_bucket::LeakyMeter;
use super::meter::{Meter, UNLIMITED};
use super::sliding_log::LogMeter;
use super::sliding_window::WindowMeter;
use super::warmup::{Pace, Shape, WarmupMeter};
use super::window_limiter::{LimitedMeter, WindowedMeter};
use crate::laws::{Inputs, holds};
use std::time::Duration;

/// What a meter should say: a list of all that was taken, and a rule by which it stops to count.
trait Reference: Clone {
    /// The largest debt that it can count.
    const MOST: u64 = u64::MAX >> 20;

    fn advance(&mut self, now: u64);
    fn free(&self) -> u64;
    fn take(&mut self, id: usize, n: u64);
    fn restore(&mut self, id: usize);
    /// Returns the new charge.
    fn correct(&mut self, id: usize, charged: u64, actual: u64) -> u64;

    /// The most that is free again for `units` that are given back.
    fn worth(&self, units: u64) -> u64 {
        units
    }

    /// True if the meter promises what a correction does.
    fn may_correct(&self, _id: usize, _charged: u64, _actual: u64) -> bool {
        true
    }

    /// When nothing counts any more, if the reference knows.
    fn is_empty_at(&self) -> Option<Option<u64>> {
        None
    }

    fn fits(&self, n: u64) -> bool {
        n == 0 || n <= self.free()
    }

    /// True if `n` fit at `at`, when nothing happens until then.
    fn fits_at(&self, n: u64, at: u64) -> bool {
        let mut later = self.clone();
        later.advance(at);
        later.fits(n)
    }
}

/// A take that may be given back.
struct Taken<M> {
    id: usize,
    units: u64,
    /// The most it was ever charged: a correction may have given nothing back.
    most: u64,
    mark: M,
}

/// Drives a meter beside its reference: time passes, also by stale readings; units are taken, within the limit or beyond it, restored
/// and corrected; and `own` is one of the meter's own operations, `others` in all.
///
/// After each step both say the same, and what a meter tells of the future is the first instant at which its reference agrees.
fn obeys<M: Meter, R: Reference>(
    inputs: &mut Inputs,
    (mut meter, mut reference): (M, R),
    others: u64,
    own: impl Fn(&mut Inputs, &mut M, &mut R, u64) -> Option<(u64, M::Mark)>,
) {
    let (mut held, mut ids) = (Vec::<Taken<M::Mark>>::new(), 0);
    // Some begin with units of two instants.
    for units in [2, 1].into_iter().take(2 * inputs.below(2) as usize) {
        let now = ids as u64;
        meter.advance(now);
        reference.advance(now);
        if meter.fits(units) {
            held.push(Taken {
                id: ids,
                units,
                most: units,
                mark: meter.take(units),
            });
            reference.take(ids, units);
            ids += 1;
        }
    }
    while inputs.goes_on() {
        let step = inputs.below(6 + others);
        let most = if step == 5 { R::MOST } else { 9 };
        match step {
            0 | 1 => {
                let ticks = inputs.number([40, 1 << 40][step as usize], 4) + step;
                if step == 0 && ticks == 7 {
                    // A stale reading changes nothing.
                    let before = (meter.now(), meter.free());
                    meter.advance(meter.now().saturating_sub(3));
                    assert_eq!((meter.now(), meter.free()), before);
                    continue;
                }
                let now = meter.now().saturating_add(ticks);
                let free = meter.free();
                meter.advance(now);
                reference.advance(now);
                assert_eq!(meter.now(), now);
                assert!(meter.free() >= free, "time takes nothing away");
            }
            2 | 5 => {
                let n = inputs.number(most, 3);
                let soon = meter.now().saturating_add(inputs.number(30, 1));
                if step == 2
                    && soon < u64::MAX
                    && let Some(mark) = meter.take_at_once(n, soon)
                {
                    // Without letting all of the time pass.
                    meter.advance(soon);
                    reference.advance(soon);
                    assert!(reference.fits(n));
                    held.push(Taken {
                        id: ids,
                        units: n,
                        most: n,
                        mark,
                    });
                    reference.take(ids, n);
                    ids += 1;
                } else if step == 5 || meter.fits(n) {
                    held.push(Taken {
                        id: ids,
                        units: n,
                        most: n,
                        mark: meter.take(n),
                    });
                    reference.take(ids, n);
                    ids += 1;
                }
            }
            3 if !held.is_empty() => {
                let Taken { id, units, most, mark } = held.remove(inputs.below(held.len() as u64) as usize);
                let free = meter.free();
                meter.restore(&mark, units);
                reference.restore(id);
                assert!(
                    meter.free() <= free.saturating_add(reference.worth(most)),
                    "it gives back at most what was taken"
                );
            }
            4 if !held.is_empty() => {
                let which = inputs.below(held.len() as u64) as usize;
                let Taken {
                    id,
                    units,
                    most,
                    mut mark,
                } = held.remove(which);
                let actual = inputs.number(12, 3);
                if !reference.may_correct(id, units, actual) {
                    held.insert(which, Taken { id, units, most, mark });
                    continue;
                }
                let free = meter.free();
                let charged = meter.correct(&mut mark, units, actual);
                assert_eq!(charged, reference.correct(id, units, actual));
                assert!(meter.free() <= free.saturating_add(reference.worth(units.saturating_sub(actual))));
                held.insert(
                    which,
                    Taken {
                        id,
                        units: charged,
                        most: most.max(charged),
                        mark,
                    },
                );
            }
            3 | 4 => {}
            _ => {
                if let Some((units, mark)) = own(inputs, &mut meter, &mut reference, step - 6) {
                    held.push(Taken {
                        id: ids,
                        units,
                        most: units,
                        mark,
                    });
                    reference.take(ids, units);
                    ids += 1;
                }
            }
        }
        assert_eq!(meter.free(), reference.free(), "at {}", meter.now());
        for n in [0, 1, 2, 3, 5] {
            assert_eq!(meter.fits(n), reference.fits(n), "{n} at {}", meter.now());
            is_first(&meter, &reference, n);
        }
        if let Some(at) = reference.is_empty_at() {
            assert_eq!(meter.fresh_at(), at, "at {}", meter.now());
        }
    }
}

/// The instant at which `n` are ready is the first at which they fit.
fn is_first<M: Meter, R: Reference>(meter: &M, reference: &R, n: u64) {
    let now = meter.now();
    match meter.ready(n, 0) {
        Some(at) if at <= now => assert!(at == now && reference.fits(n), "{n} at {now}"),
        Some(at) => {
            assert!(
                at == u64::MAX || reference.fits_at(n, at),
                "{n}, told at {now}, do not fit at {at}"
            );
            assert!(!reference.fits_at(n, at - 1), "{n}, told at {now}, fit before {at}");
        }
        None => assert!(
            !reference.fits_at(n, u64::MAX - 1),
            "{n} at {now} are told never to fit"
        ),
    }
    // Behind others it is no earlier.
    let behind = |ahead| meter.ready(n, ahead).unwrap_or(u64::MAX);
    assert!(behind(0) <= behind(1) && behind(1) <= behind(4));
}

/// Units that count from when they were taken until a rule says.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: usize,
    at: u64,
    /// How many changes had forgiven any before it.
    seals: usize,
    units: u64,
}

/// No take is this one.
const NONE: usize = usize::MAX;

/// A window that slides: each entry counts for a time.
#[derive(Clone, Debug)]
struct Window {
    now: u64,
    limit: u64,
    length: u64,
    /// The length of a segment, and where the first begins: an entry counts as one at the end of its segment. Without, it is a log.
    segments: Option<(u64, u64)>,
    /// The oldest first.
    entries: Vec<Entry>,
    /// By take, when it was made, and after how many changes.
    made: Vec<(u64, usize)>,
    seals: usize,
}

impl Window {
    fn new(limit: u64, length: u64, segments: Option<(u64, u64)>) -> Self {
        Self {
            now: 0,
            limit,
            length,
            segments,
            entries: Vec::new(),
            made: Vec::new(),
            seals: 0,
        }
    }

    fn ends(&self, entry: &Entry) -> u64 {
        let counted = match self.segments {
            None => entry.at,
            Some((segment, first)) => {
                first.saturating_add(((entry.at - first) / segment).saturating_add(1).saturating_mul(segment))
            }
        };
        counted.saturating_add(self.length)
    }

    fn total(&self) -> u64 {
        self.entries.iter().map(|entry| entry.units).sum()
    }

    fn add(&mut self, id: usize, units: u64) {
        let (at, seals) = (self.now, self.seals);
        self.entries.push(Entry { id, at, seals, units });
    }

    fn seal(&mut self) {
        self.seals += 1;
    }

    /// Leaves `total`: the oldest are forgiven, and missing ones count from now on.
    fn hold(&mut self, total: u64) {
        let held = self.total();
        if held < total {
            self.add(NONE, total - held);
        }
        if held > total {
            let mut over = held - total;
            for entry in &mut self.entries {
                let units = over.min(entry.units);
                entry.units -= units;
                over -= units;
            }
            self.seal();
        }
    }
}

impl Reference for Window {
    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        let window = self.clone();
        self.entries.retain(|entry| window.ends(entry) > window.now);
    }

    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.total())
    }

    fn take(&mut self, id: usize, n: u64) {
        self.made.push((self.now, self.seals));
        self.add(id, n);
    }

    fn restore(&mut self, id: usize) {
        let seals = self.seals;
        self.entries.retain(|entry| entry.id != id || entry.seals < seals);
    }

    fn correct(&mut self, id: usize, charged: u64, actual: u64) -> u64 {
        let (made, seals, is_log) = (self.made[id], self.seals, self.segments.is_none());
        let more = actual.saturating_sub(charged);
        if is_log && charged == 0 && actual > 0 {
            // Nothing is left of it in a log: it counts from now on.
            self.restore(id);
            self.made[id] = (self.now, seals);
            self.add(id, actual);
        } else if made.1 == seals {
            if let Some(entry) = self
                .entries
                .iter_mut()
                .find(|entry| entry.id == id && entry.seals == seals)
            {
                entry.units = actual;
            }
        } else if let Some(same) = self
            .entries
            .iter()
            .position(|entry| is_log && entry.units > 0 && (entry.at, entry.seals) == made)
        {
            // A change has forgiven others at most.
            self.entries[same].units += more;
        } else {
            self.add(NONE, more);
        }
        actual
    }

    fn is_empty_at(&self) -> Option<Option<u64>> {
        let ends = self
            .entries
            .iter()
            .filter(|entry| entry.units > 0)
            .map(|entry| self.ends(entry));
        Some(Some(ends.max().unwrap_or(self.now)))
    }
}

/// A change of the limit, to any room, or a new start.
fn change<M: LimitedMeter>(inputs: &mut Inputs, meter: &mut M, reference: &mut Window) {
    if inputs.below(3) == 0 {
        meter.clear();
        reference.hold(0);
        return reference.seal();
    }
    let (limit, total) = (inputs.number(8, 2), inputs.number(10, 3));
    let room = i128::from(limit) - i128::from(total);
    meter.set_limit(limit, room);
    reference.limit = limit;
    reference.hold(total);
    assert_eq!((meter.limit(), meter.room()), (limit, room));
}

#[test]
fn a_sliding_log_is_the_list_of_all_admissions() {
    holds([2, 3], |inputs| {
        let (limit, length) = (inputs.number(8, 2), 1 + inputs.number(30, 2));
        let both = (LogMeter::new(0, length, limit, None), Window::new(limit, length, None));
        obeys(inputs, both, 1, |inputs, log, reference, _| {
            change(inputs, log, reference);
            assert_eq!(log.debt(), reference.total().saturating_sub(reference.limit));
            None
        });
    });
}

#[test]
fn a_sliding_window_is_a_log_by_segments() {
    holds([2, 3], |inputs| {
        let (limit, length, segments) = (inputs.number(8, 2), 1 + inputs.number(20, 1), 1 + inputs.number(5, 1));
        let reference = Window::new(limit, length * segments, Some((length, 0)));
        let meter = WindowMeter::new(0, segments as usize, length, limit);
        obeys(inputs, (meter, reference), 1, |inputs, window, reference, _| {
            change(inputs, window, reference);
            assert_eq!(window.debt(), reference.total().saturating_sub(reference.limit));
            None
        });
    });
}

/// With fewer entries than it needs, a log admits less, and never more.
#[test]
fn a_log_of_few_entries_keeps_its_bound() {
    holds([2, 4], |inputs| {
        let (limit, length, most) = (
            inputs.number(8, 3),
            1 + inputs.number(9, 2),
            1 + inputs.number(3, 1) as usize,
        );
        let mut log = LogMeter::new(0, length, limit, Some(most));
        let mut taken = Vec::new();
        while inputs.goes_on() {
            let now = log.now() + inputs.number(12, 2);
            log.advance(now);
            let n = 1 + inputs.number(4, 1);
            let is_debt = inputs.below(4) == 0;
            if log.fits(n) || is_debt {
                log.take(n);
                taken.push((now, n));
            }
            let held = |from: u64| {
                taken
                    .iter()
                    .filter(|&&(at, _)| at + length > from)
                    .map(|(_, n)| n)
                    .sum::<u64>()
            };
            assert!(log.entries() <= most && log.free() <= limit.saturating_sub(held(now)));
            assert!(is_debt || held(now) <= limit || log.free() == 0);
            match log.ready(1, 0) {
                Some(at) if at > now => {
                    assert!(!log.fits(1));
                    log.advance(at - 1);
                    assert!(!log.fits(1));
                    log.advance(at);
                    assert!(log.fits(1));
                }
                Some(_) => assert!(log.fits(1)),
                None => assert_eq!(limit, 0),
            }
        }
    });
}

/// Windows one after the other: each take has units in one or more of them.
#[derive(Clone, Debug)]
struct Windows {
    now: u64,
    limit: u64,
    length: u64,
    /// By window: whose, and how many.
    units: Vec<(u64, usize, u64)>,
    /// By take, its last window. It is given back as long as that is the last of all.
    last: Vec<u64>,
    /// The takes of which nothing comes back: a change has forgiven some of them, or moved them.
    void: Vec<bool>,
    /// The window of the latest booking since the latest change, and what that window had up to the booking.
    booked: Option<(u64, u64)>,
    /// The same of the latest booking before the change.
    kept: Option<(u64, u64)>,
}

impl Windows {
    fn new(limit: u64, length: u64) -> Self {
        Self {
            now: 0,
            limit,
            length,
            units: Vec::new(),
            last: Vec::new(),
            void: Vec::new(),
            booked: None,
            kept: None,
        }
    }

    fn current(&self) -> u64 {
        self.now / self.length
    }

    fn held(&self, window: u64) -> u64 {
        self.units
            .iter()
            .filter(|units| units.0 == window)
            .map(|units| units.2)
            .sum()
    }

    fn tail(&self) -> u64 {
        self.units
            .iter()
            .map(|units| units.0)
            .max()
            .unwrap_or(0)
            .max(self.current())
    }

    /// The first window, from the last that has units, which has room for all `n`.
    fn place(&self, n: u64) -> u64 {
        let tail = self.tail();
        tail + u64::from(self.held(tail) + n > self.limit)
    }

    fn total(&self) -> u64 {
        self.units.iter().map(|units| units.2).sum()
    }

    /// Nothing that was taken comes back, and nothing of it counts but these units of a window.
    fn anew(&mut self, window: u64, units: u64) {
        self.void.fill(true);
        self.units = vec![(window, NONE, units)];
        self.units.retain(|units| units.2 > 0);
    }

    fn clear(&mut self) {
        self.anew(0, 0);
        (self.booked, self.kept) = (None, None);
    }

    /// Leaves `total`, unless a booking has not begun: its window keeps what it had up to there, and debts come behind.
    fn set_limit(&mut self, limit: u64, total: u64) {
        let (current, tail, held) = (self.current(), self.tail(), self.total());
        // What is left up to a cancelled booking is the last.
        let booked = self.booked.map(|booked| booked.min((tail, self.held(tail))));
        let promise = booked.max(self.kept).filter(|(window, _)| *window > current);
        self.limit = limit;
        if let Some((window, units)) = promise {
            let behind: u64 = (window..=tail).map(|window| self.held(window)).sum();
            self.anew(window, units);
            self.charge(NONE, if total == 0 { 0 } else { behind.saturating_sub(units) });
            (self.booked, self.kept) = (None, promise);
        } else if tail > current {
            self.anew(current, 0);
            self.charge(NONE, total);
        } else if total < held {
            self.anew(current, total);
        } else if total > held {
            self.units.push((current, NONE, total - held));
        }
    }

    /// From the last window on.
    fn charge(&mut self, id: usize, mut n: u64) {
        let mut window = self.tail();
        while n > 0 {
            let units = n.min(self.limit.saturating_sub(self.held(window)));
            if units > 0 {
                self.units.push((window, id, units));
            }
            n -= units;
            window += 1;
        }
    }
}

impl Reference for Windows {
    const MOST: u64 = 40;

    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        let current = self.current();
        self.units.retain(|units| units.0 >= current);
    }

    fn free(&self) -> u64 {
        // Nothing starts before what lies ahead.
        let is_last = self.tail() == self.current();
        if is_last {
            self.limit.saturating_sub(self.held(self.current()))
        } else {
            0
        }
    }

    fn take(&mut self, id: usize, n: u64) {
        self.charge(id, n);
        let tail = self.tail();
        if id < self.last.len() {
            (self.last[id], self.void[id]) = (tail, false);
        } else {
            self.last.push(tail);
            self.void.push(false);
        }
    }

    fn restore(&mut self, id: usize) {
        let tail = self.tail();
        let alone = self.units.iter().all(|units| units.0 != tail || units.1 == id);
        let is_last = self.last[id] == tail && !self.void[id];
        self.units
            .retain(|units| units.1 != id || !is_last || (units.0 != tail && !alone));
    }

    fn correct(&mut self, id: usize, charged: u64, actual: u64) -> u64 {
        let tail = self.tail();
        let is_last = self.last[id] == tail && !self.void[id];
        let alone = is_last && self.units.iter().all(|units| units.0 != tail || units.1 == id);
        let mut less = charged.saturating_sub(actual);
        // From the last window on backwards, as in `restore`.
        for units in self.units.iter_mut().rev() {
            if is_last && units.1 == id && (alone || units.0 == tail) {
                let part = less.min(units.2);
                units.2 -= part;
                less -= part;
            }
        }
        self.units.retain(|units| units.2 > 0);
        if alone {
            self.last[id] = self.tail();
        }
        let more = actual.saturating_sub(charged);
        if actual >= charged {
            let before = self.units.len();
            self.take(id, more);
            // The parts are one if no others lie between them.
            let goes_on = alone || (is_last && self.tail() == tail);
            if !goes_on {
                self.units[..before]
                    .iter_mut()
                    .filter(|units| units.1 == id)
                    .for_each(|units| units.1 = NONE);
            }
        }
        actual
    }

    fn is_empty_at(&self) -> Option<Option<u64>> {
        let ends = self.units.iter().map(|units| (units.0 + 1).saturating_mul(self.length));
        Some(Some(ends.max().unwrap_or(self.now)))
    }
}

/// Given takes, debts, bookings, cancels, corrections, changes of the limit and new starts in any order, then a fixed window is a row of
/// windows: each take fills the last and those behind it, each booking lies in one, and a booking that has not begun stays where it is.
#[test]
fn a_fixed_window_is_a_row_of_windows_that_are_filled_in_order() {
    holds([3, 3], |inputs| {
        let (limit, length) = (1 + inputs.number(7, 1), 1 + inputs.number(20, 1));
        let meter = FixedMeter::new(0, Even { end: length, length }, limit);
        obeys(
            inputs,
            (meter, Windows::new(limit, length)),
            2,
            |inputs, windows, reference, what| {
                let limit = reference.limit;
                assert_eq!(windows.room(), i128::from(limit) - i128::from(reference.total()));
                if what == 1 {
                    if inputs.below(4) == 3 {
                        windows.clear();
                        reference.clear();
                    } else {
                        let (limit, total) = (1 + inputs.number(7, 1), inputs.number(12, 2));
                        windows.set_limit(limit, i128::from(limit) - i128::from(total));
                        reference.set_limit(limit, total);
                    }
                    assert_eq!(
                        windows.room(),
                        i128::from(reference.limit) - i128::from(reference.total())
                    );
                    return None;
                }
                // Windows that a change has closed count as full.
                let most = if reference.kept.is_some() {
                    u64::MAX
                } else {
                    inputs.one_of(&[u64::MAX, limit])
                };
                let n = inputs.number(9, 2);
                let tail = reference.tail();
                let place = if n == 0 { tail } else { reference.place(n) };
                let rest = if place > tail {
                    limit.saturating_sub(reference.held(tail))
                } else {
                    0
                };
                // What is charged to windows that have not begun at `at`, the rest of the last one included.
                let beyond = |at: u64| {
                    let windows = reference.now.max(at) / length + 1..=place;
                    let is_ahead = windows.contains(&place);
                    let rest = if windows.contains(&tail) { rest } else { 0 };
                    windows.map(|window| reference.held(window)).sum::<u64>() + if is_ahead { n + rest } else { 0 }
                };
                let now = reference.now;
                match windows.book(n, most) {
                    Ok((mark, due)) => {
                        assert!(n <= limit && beyond(now) <= most, "{} of {most}", beyond(now));
                        assert_eq!(due, now.max(place * length));
                        if due > now {
                            let before = if place > tail { 0 } else { reference.held(place) };
                            reference.booked = Some((place, before + n));
                        }
                        Some((n + rest, mark))
                    }
                    Err(None) => {
                        assert!(n > limit);
                        None
                    }
                    Err(Some(at)) => {
                        assert!(at > now && beyond(at - 1) > most && beyond(at) <= most, "{at}");
                        None
                    }
                }
            },
        );
    });
}

fn of_length(nanos: u64) -> fixed_window::Settings {
    fixed_window::Settings {
        length: Duration::from_nanos(nanos),
        own: fixed_window::Own {
            most_ahead: u64::MAX,
            aligned: None,
        },
    }
}

/// Given a row of bookings that each fill a window, then after a change of the length, and of the limit, the window of the last has as
/// much of the limit in force as the bookings that start in it leave, also when all is over and it happens again. After further changes
/// and bookings it has no more. Nothing of before a change comes back.
#[test]
fn the_last_booked_window_has_the_rest_of_the_limit_in_force() {
    holds([1, 1], |inputs| {
        let clock = crate::ManualClock::new();
        let (limit, length) = (1 + inputs.number(7, 1), 1 + inputs.number(20, 2));
        let mut meter = FixedMeter::new(0, Even { end: length, length }, limit);
        let (mut now, mut start, mut length) = (0, 0, length);
        for _ in 0..=inputs.number(4, 0) {
            let taken = limit - inputs.number(limit - 1, 1);
            let mut marks = vec![(meter.take(taken), taken)];
            let bookings = 1 + inputs.number(4, 2);
            let mut dues: Vec<_> = (1..=bookings).map(|number| (start + number * length, limit)).collect();
            for &(due, _) in &dues {
                let (mark, at) = meter.book(limit, u64::MAX).expect("it fits a window");
                assert_eq!(at, due);
                marks.push((mark, limit));
            }
            let last = start + bookings * length;
            now += inputs.number(last - now - 1, 3);
            meter.advance(now);
            start += (now - start) / length * length;
            let changes = 1 + inputs.number(2, 1);
            let mut is_exact = changes == 1;
            for change in 0..changes {
                length = 1 + inputs.number(50, 3);
                let room = meter.room();
                meter.set_length(&of_length(length), clock.clock());
                start += (now - start) / length * length;
                assert_eq!(meter.borders.end, start + length);
                if change == 1 && is_exact && last < start + length {
                    assert_eq!(meter.room(), room, "the booking is still one of this window");
                }
                if change + 1 < changes {
                    // One booking is told from all others until another length moves it behind windows again.
                    is_exact = change == 0 && changes == 2 && bookings == 1 && last < start + length;
                    now = (now + inputs.number(20, 1)).min(last - 1);
                    meter.advance(now);
                    start += (now - start) / length * length;
                    for _ in 0..inputs.number(3, 1) {
                        // Also several in a window.
                        meter.set_limit(limit * 3, i128::from(limit * 3) - i128::from(taken));
                        let n = 1 + inputs.number(limit - 1, 0);
                        dues.extend(meter.book(n, u64::MAX).map(|(_, due)| (due, n)));
                        is_exact = false;
                    }
                }
            }
            if inputs.below(2) == 1 {
                marks.iter().for_each(|(mark, units)| meter.restore(mark, *units));
            }
            // What was booked for an instant counts from then, and a new start of what has begun forgets the rest.
            let large = limit * 20;
            meter.set_limit(large, large.into());
            let last = dues.iter().map(|due| due.0).max().expect("there is one");
            let window = |at: u64| (at - start) / length;
            let opens = start + window(last) * length;
            let here = dues
                .iter()
                .filter(|&&(due, _)| due > now && window(due) == window(last));
            let free = large - here.map(|due| due.1).sum::<u64>();
            if opens > now {
                let ready = meter.ready(1, 0);
                assert!(meter.free() == 0 && ready >= Some(opens));
                assert!(!is_exact || ready == Some(opens));
                meter.advance(opens - 1);
                assert_eq!(meter.free(), 0);
                meter.advance(opens);
            }
            assert!(meter.free() <= free, "{} of {free}", meter.free());
            assert!(!is_exact || meter.free() == free, "{} of {free}", meter.free());
            now = now.max(opens) + length;
            meter.advance(now);
            start += (now - start) / length * length;
            assert_eq!((meter.free(), meter.debt()), (large, 0));
            meter.set_limit(limit, limit.into());
        }
    });
}

/// Given units of one take, then after a change of the length they fill the windows of the new one from the current window on, and those
/// that have ended since take their part with them, unless the take is later. What is owed does not come back.
#[test]
fn units_of_a_fixed_window_fill_the_windows_of_a_new_length() {
    holds([1, 1], |inputs| {
        let clock = crate::ManualClock::new();
        let (limit, length) = (1 + inputs.number(7, 1), 1 + inputs.number(20, 4));
        let mut meter = FixedMeter::new(0, Even { end: length, length }, limit);
        let at = inputs.number(length - 1, 4);
        meter.advance(at);
        let n = inputs.number(20, 4);
        let mark = meter.take(n);
        let now = at + inputs.number(60, 4);
        meter.advance(now);
        let began = now / length * length;
        let held = n.saturating_sub(now / length * limit);
        let new = 1 + inputs.number(20, 4);
        meter.set_length(&of_length(new), clock.clock());
        let passed = (now - began) / new;
        let start = began + passed * new;
        let left = if at >= start {
            held
        } else {
            held.saturating_sub(passed * limit)
        };
        assert_eq!(
            (meter.borders.end, meter.room()),
            (start + new, i128::from(limit) - i128::from(left))
        );
        let ends = start + left.div_ceil(limit) * new;
        assert_eq!(meter.fresh_at(), Some(if left > 0 { ends } else { now }));
        let mut later = meter.take(0);
        meter.restore(&mark, n);
        let comes = passed == 0 && held <= limit;
        assert_eq!(
            meter.room(),
            i128::from(limit) - i128::from(if comes { 0 } else { left })
        );
        assert_eq!(meter.correct(&mut later, 0, 0), 0);
    });
}

/// Windows that are aligned end where the wall clock is at a multiple of their length; others a length after they begin.
#[test]
fn an_aligned_window_ends_at_a_multiple_of_its_length() {
    holds([1, 1], |inputs| {
        let clock = crate::ManualClock::new();
        let (length, at) = (1 + inputs.number(1 << 54, 4), inputs.number(1 << 50, 2));
        let now = at + inputs.number(1 << 50, 4);
        let wall = i128::from(inputs.number(1 << 62, 4)) - inputs.one_of(&[0, 1 << 60]);
        let mut set = of_length(length);
        let is_aligned = inputs.below(2) == 1;
        set.own.aligned = is_aligned.then_some(fixed_window::Aligned {
            wall,
            at: crate::Instant::from_ticks(at),
        });
        let end = FixedMeter::start(now, 1, &set, clock.clock()).borders.end;
        assert!(now < end && end <= now + length);
        let shows = wall + i128::from(end - at);
        assert!(if is_aligned {
            shows.rem_euclid(length.into()) == 0
        } else {
            end == now + length
        });
    });
}

/// A booking: its instant, its units, and its mark.
struct Booked {
    due: u64,
    units: u64,
    mark: fixed_window::Mark,
}

/// Given bookings, takes, debts, cancels, and changes of the limit and the length in any order, then
/// - nothing is admitted while the last booking's window has not begun, and nothing is booked before it;
/// - what is admitted, and what is booked for the same window, are at most the limit in force;
/// - once all of them have ended, the limit is there again.
#[test]
fn bookings_keep_their_instants_through_changes_of_limit_and_length() {
    holds([4, 5], |inputs| {
        let clock = crate::ManualClock::new();
        let (mut limit, length) = (1 + inputs.number(7, 1), 1 + inputs.number(20, 1));
        let mut meter = FixedMeter::new(0, Even { end: length, length }, limit);
        let mut booked: Vec<Booked> = Vec::new();
        // Takes of the current window, of which no change has made others.
        let (mut now, mut taken) = (0, 0);
        // Their marks, and whether a change has forgiven any of them or begun anew.
        let mut takes: Vec<(fixed_window::Mark, u64, bool)> = Vec::new();
        // The latest instant that was promised, if nothing is owed, and the longest length.
        let (mut promised, mut owes, mut longest) = (0, false, length);
        while inputs.goes_on() {
            let border = meter.borders.end;
            match inputs.below(8) {
                0 => {
                    now += inputs.number(50, 3);
                    // Borders of one length come no earlier than they were told. An earlier instant changes nothing.
                    assert!(!meter.catch_up(now) && !meter.catch_up(now / 2));
                    assert!(now < meter.borders.end && meter.now() == now);
                    if meter.borders.end != border {
                        taken = 0;
                    }
                }
                1 => {
                    let n = 1 + inputs.number(7, 1);
                    assert_eq!(meter.fits(n), n <= meter.free());
                    if meter.fits(n) {
                        takes.push((meter.take(n), n, false));
                        taken += n;
                    }
                }
                2 => {
                    let n = 1 + inputs.number(7, 1);
                    let ready = meter.ready(n, 0);
                    match meter.book(n, u64::MAX) {
                        Ok((mark, due)) => {
                            assert!(n <= limit && due >= now);
                            assert_eq!(ready, Some(due), "a booking waits as long as a request");
                            // In order, but within a window.
                            let Even { end, length } = meter.borders;
                            let ends = if due < end { end } else { due + length };
                            assert!(booked.iter().all(|before| before.due < ends), "{due}");
                            booked.push(Booked { due, units: n, mark });
                            promised = promised.max(due);
                        }
                        Err(at) => assert!(at.is_none() && n > limit),
                    }
                }
                3 => {
                    let at = inputs.below((booked.len() + takes.len()).max(1) as u64) as usize;
                    let (free, room) = (meter.free(), meter.room());
                    if at < booked.len() {
                        let Booked { units, mark, .. } = booked.remove(at);
                        meter.restore(&mark, units);
                    } else if at - booked.len() < takes.len() {
                        let (mark, units, is_void) = takes.remove(at - booked.len());
                        meter.restore(&mark, units);
                        assert!(meter.room() <= room + i128::from(units));
                        assert!(
                            !is_void || (meter.free(), meter.room()) == (free, room),
                            "of before a change"
                        );
                        taken = taken.saturating_sub(units);
                    }
                }
                4 => {
                    // A debt.
                    meter.take(inputs.number(9, 2));
                    (taken, owes) = (0, true);
                }
                5 => {
                    limit = inputs.number(8, 2);
                    let total = inputs.number(10, 2);
                    let forgives = i128::from(total) < i128::from(meter.limit()) - meter.room();
                    if forgives {
                        takes.iter_mut().for_each(|take| take.2 = true);
                    }
                    owes |= total > limit;
                    let room = i128::from(limit) - i128::from(total);
                    meter.set_limit(limit, room);
                    assert_eq!(meter.limit(), limit);
                    // No booking lies ahead; and none counts.
                    assert!(promised >= meter.borders.end || meter.room() <= room);
                    assert!(promised > now || meter.room() == room);
                    // What has begun counts as the rule says.
                    booked.retain(|booked| booked.due > now);
                    taken = 0;
                }
                6 => {
                    // A new start, or no limit for a while. Nothing comes back of what was taken before.
                    if inputs.below(2) == 0 {
                        meter.clear();
                    } else {
                        meter.set_limit(UNLIMITED, 0);
                        let mark = meter.take(5);
                        meter.restore(&mark, 5);
                        assert_eq!((meter.free(), meter.ready(1 << 60, 9)), (UNLIMITED, Some(now)));
                        meter.set_limit(limit, limit.into());
                    }
                    assert_eq!((meter.free(), meter.debt()), (limit, 0));
                    takes.iter_mut().for_each(|take| take.2 = true);
                    (taken, promised, owes) = (limit.min(1), 0, false);
                    meter.take(taken);
                    for Booked { units, mark, .. } in booked.drain(..) {
                        meter.restore(&mark, units);
                    }
                    assert_eq!((meter.free(), meter.debt()), (limit - taken, 0));
                }
                _ => {
                    let settings = of_length(1 + inputs.number(20, 2));
                    let length = settings.ticks(clock.clock());
                    meter.set_length(&settings, clock.clock());
                    longest = longest.max(length);
                    assert!(
                        meter.borders.length == length && now < meter.borders.end && meter.borders.end <= now + length
                    );
                    taken = 0;
                }
            }
            let Even { end, length } = meter.borders;
            booked.retain(|booked| i128::from(booked.due) >= i128::from(end) - i128::from(length));
            if booked.iter().any(|booked| booked.due >= end) {
                assert_eq!(meter.free(), 0, "a booking has not begun");
                assert!(meter.debt() > 0);
            }
            let here: u64 = booked
                .iter()
                .filter(|booked| booked.due < end)
                .map(|booked| booked.units)
                .sum();
            assert!(
                meter.free() + (here + taken).min(limit) <= limit,
                "{} beside {here} and {taken} of {limit}",
                meter.free()
            );
        }
        let fresh = meter.fresh_at();
        // A limit of zero never serves what it owes.
        assert!(limit == 0 || fresh.is_some());
        let Some(fresh) = fresh else { return };
        assert!(
            owes || limit == 0 || fresh <= promised.max(now) + 2 * longest,
            "{fresh} after {promised}"
        );
        meter.advance(fresh);
        assert_eq!((meter.free(), meter.debt()), (limit, 0));
        meter.advance(fresh + meter.borders.length * 100);
        assert_eq!(meter.free(), limit);
    });
}

/// A bucket as a queue of takes, of which the oldest flows out first. Amounts are grains.
#[derive(Clone, Debug)]
struct Layers {
    now: u64,
    /// What flows out in a tick: whole grains.
    flow: u128,
    brim: u128,
    layers: Vec<(usize, u128)>,
}

impl Layers {
    fn level(&self) -> u128 {
        self.layers.iter().map(|layer| layer.1).sum()
    }

    fn flow_out(&mut self, mut amount: u128) {
        for layer in &mut self.layers {
            let part = amount.min(layer.1);
            layer.1 -= part;
            amount -= part;
        }
        self.layers.retain(|layer| layer.1 > 0);
    }
}

impl Reference for Layers {
    fn advance(&mut self, now: u64) {
        let ticks = now.saturating_sub(self.now);
        self.now += ticks;
        self.flow_out(self.flow.saturating_mul(ticks.into()));
    }

    fn free(&self) -> u64 {
        if self.flow == 0 {
            0
        } else {
            (self.brim.saturating_sub(self.level()) >> GRAIN) as u64
        }
    }

    fn take(&mut self, id: usize, n: u64) {
        self.layers.push((id, grains(n)));
    }

    fn restore(&mut self, id: usize) {
        self.layers.retain(|layer| layer.0 != id);
    }

    fn correct(&mut self, id: usize, charged: u64, actual: u64) -> u64 {
        let less = grains(charged.saturating_sub(actual));
        self.layers
            .iter_mut()
            .filter(|layer| layer.0 == id)
            .for_each(|layer| layer.1 = layer.1.saturating_sub(less));
        if actual > charged {
            let left = self.level();
            self.layers = vec![(id, left + grains(actual - charged))];
        }
        self.layers.retain(|layer| layer.1 > 0);
        actual
    }

    /// Of one that lies below others a part counts as older than all. What changes nothing does not come here.
    fn may_correct(&self, id: usize, charged: u64, actual: u64) -> bool {
        actual < charged || (actual > charged && self.layers.iter().all(|layer| layer.0 == id))
    }

    fn is_empty_at(&self) -> Option<Option<u64>> {
        let level = self.level();
        Some(match self.flow {
            0 => (level == 0).then_some(self.now),
            flow => Some(
                self.now
                    .saturating_add(u64::try_from(level.div_ceil(flow)).unwrap_or(u64::MAX)),
            ),
        })
    }
}

#[test]
fn a_leaky_bucket_is_a_queue_of_takes_that_flows_out() {
    holds([2, 3], |inputs| {
        // A unit takes a whole number of ticks, and a tick whole grains.
        let rate = |inputs: &mut Inputs| {
            let (count, shift) = (inputs.one_of(&[1, 2]), 1 + inputs.number(20, 2) as u32);
            (count, 1 << shift, (u128::from(count) << GRAIN) >> shift)
        };
        let (count, nanos, flow) = rate(inputs);
        let brim = inputs.number(9, 2);
        let scale = inputs.one_of(&[1 << 40, 1 << 39]);
        let drain = |count, nanos: u64| {
            Some(Drain::new(
                count,
                if scale == 1 << 40 { nanos } else { nanos / 2 },
                scale,
            ))
        };
        let meter = LeakyMeter::new(0, drain(count, nanos), brim, 20);
        let reference = Layers {
            now: 0,
            flow,
            brim: grains(brim),
            layers: Vec::new(),
        };
        obeys(inputs, (meter, reference), 1, |inputs, leaky, reference, _| {
            match inputs.below(5) {
                0 => {
                    leaky.clear();
                    reference.layers.clear();
                }
                // A booking of nothing changes nothing.
                4 => drop(leaky.book(0)),
                1 => {
                    let (count, nanos, flow) = rate(inputs);
                    leaky.set_drain(drain(count, nanos));
                    reference.flow = flow;
                }
                _ => {
                    let (brim, level) = (grains(inputs.number(9, 2)), grains(inputs.number(12, 3)));
                    leaky.set_brim(brim, 20, brim as i128 - level as i128);
                    reference.brim = brim;
                    let before = reference.level();
                    reference.flow_out(before.saturating_sub(level));
                    reference.layers.push((NONE, level.saturating_sub(before)));
                    reference.layers.retain(|layer| layer.1 > 0);
                    assert_eq!((leaky.brim(), leaky.room()), (brim, brim as i128 - level as i128));
                }
            }
            None
        });
    });
}

/// Given a bucket from which a unit is taken as soon as it fits, also after a take that was undone, then no part of a tick is lost. A booking
/// is due at the first instant at which the level that it leaves has sunk to the brim, and is refused as long as it fills more than the
/// bucket holds.
#[test]
fn steady_demand_on_a_leaky_bucket_loses_no_part_of_a_tick() {
    holds([1, 1], |inputs| {
        let count = 1 + inputs.number(1_000, 3);
        let nanos = count + inputs.number(100_000, 4);
        let (brim, size) = (1 + inputs.number(4, 2), 40);
        let mut leaky = LeakyMeter::new(0, Some(Drain::new(count, nanos, 1 << 40)), brim, size);
        // The first instant at which this many units have flowed out.
        let sunk = |units: u64| (units * nanos).div_ceil(count);
        let undoes = inputs.below(4);
        let times = 20u64;
        let mut last = [0; 3];
        for taken in 0..times {
            let at = leaky.ready(1, 0).expect("it flows");
            assert_eq!(at, sunk((taken + 1).saturating_sub(brim)), "{taken} were taken");
            leaky.advance(at);
            // The same instant again changes nothing.
            leaky.advance(at);
            assert!(leaky.fits(1) && leaky.free() >= 1);
            for _ in 0..undoes {
                let (room, mark) = (leaky.room(), leaky.take(1));
                leaky.restore(&mark, 1);
                assert_eq!(leaky.room(), room);
            }
            last = leaky.take(1);
        }
        let now = leaky.now();
        let owed = |units: u64| (units * nanos).saturating_sub(now * count).div_ceil(nanos);
        assert_eq!(leaky.debt(), owed(times - brim));
        // As much as just fits, and more.
        let most = (size * nanos + now * count - times * nanos) / nanos;
        for n in [inputs.number(size - brim - 1, 3), most, most + 1, size] {
            let level = (times + n) * nanos - now * count;
            match leaky.book(n) {
                Ok((mark, due)) => {
                    assert!(level <= size * nanos);
                    assert_eq!(due, sunk((times + n).saturating_sub(brim)).max(now), "{n}");
                    assert_eq!(leaky.debt(), owed(times + n - brim));
                    leaky.restore(&mark, n);
                    assert_eq!(leaky.debt(), owed(times - brim));
                }
                Err(at) => {
                    assert!(level > size * nanos);
                    assert_eq!(at, Some(sunk(times + n - size)));
                }
            }
        }
        let mut stopped = LeakyMeter::new(0, Some(Drain::new(0, 1, 1 << 40)), brim, size);
        assert!(stopped.fits(0) && !stopped.fits(1) && stopped.book(1).err() == Some(None));
        assert_eq!((stopped.free(), stopped.ready(1, 0)), (0, None));
        assert_eq!(stopped.book(0).map(|booked| booked.1), Ok(0));
        // Without the last, it is as if that had not been taken.
        let later = now + inputs.number(nanos / count, 2);
        leaky.advance(later);
        leaky.restore(&last, 1);
        assert_eq!(leaky.ready(1, 0), Some(sunk(times - brim).max(later)));
    });
}

/// On any counter, a bucket that has run dry admits as much as it holds at once and not more, and time in which it was empty is no credit.
#[test]
fn an_empty_leaky_bucket_gains_nothing() {
    holds([1, 1], |inputs| {
        let (count, nanos) = (1 + inputs.number(20, 3), 1 + inputs.number(100, 4));
        let scale = (1 << 40) + 12_345 + inputs.number(60, 20) * ((1 << 40) + 777);
        let (brim, drain) = (1 + inputs.number(4, 2), Drain::new(count, nanos.max(count), scale));
        let nanos = nanos.max(count);
        let mut leaky = LeakyMeter::new(0, Some(drain), brim, brim);
        let used = inputs.number(brim, 2);
        leaky.take(used);
        // The ticks in which units flow out.
        let lasts =
            |units: u64| ((u128::from(units * nanos)) << 40).div_ceil(u128::from(count) * u128::from(scale)) as u64;
        let dry = leaky.fresh_at().expect("it flows");
        let now = dry + inputs.number(3, 2);
        leaky.advance(now);
        let mut taken = 0;
        while leaky.fits(1) {
            leaky.take(1);
            taken += 1;
        }
        assert_eq!(taken, brim, "at {now}");
        // One more has room when a unit has flowed out: since it ran dry, or else since now.
        let room = if used > 0 && now == dry {
            lasts(used + 1)
        } else {
            now + lasts(1)
        };
        assert!(leaky.ready(1, 0) >= Some(room), "{room} after {now}");
    });
}

/// A unit alone goes through the word where it takes whole ticks, and where the rest is less than a millionth, or than what passes while it
/// is admitted.
#[test]
fn a_unit_of_a_leaky_bucket_lasts_whole_ticks_or_stays_under_the_lock() {
    holds([1, 1], |inputs| {
        let count = 1 + inputs.number(1_000, 3);
        let nanos = count + inputs.number(1 << 40, 5) * inputs.one_of(&[1, 1_000_000]);
        let lasts = |count, nanos, scale| {
            LeakyMeter::new(0, Some(Drain::new(count, nanos, scale)), 1, 1)
                .times()
                .lasts
        };
        let ticks = nanos.div_ceil(count);
        let goes = nanos.is_multiple_of(count) || ticks >= 1_000_000;
        assert_eq!(lasts(count, nanos, 1 << 40), if goes { ticks } else { u64::MAX });
        assert_eq!(lasts(0, 1, 1 << 40), u64::MAX);
        // Ticks of a little more than a nanosecond, of which up to fifteen are brief.
        let (ticks, scale) = (1 + inputs.number(30, 30), (1 << 40) + (1 << 30));
        let goes = ticks < 16;
        assert_eq!(lasts(1, ticks, scale), if goes { ticks } else { u64::MAX }, "{ticks}");
    });
}

/// Given an entry of a log, then after a change of the length it counts as long as the new one says, if it still did by the old one; and
/// nothing counts where there is no limit.
#[test]
fn an_entry_of_a_log_counts_for_the_length_in_force() {
    holds([1, 1], |inputs| {
        let clock = crate::ManualClock::new();
        let (limit, n) = (1 + inputs.number(8, 1), 1 + inputs.number(8, 1));
        let (before, after) = (1 + inputs.number(30, 3), 1 + inputs.number(30, 3));
        let mut log = LogMeter::new(0, before, limit, None);
        assert_eq!(log.entries(), 0);
        let mark = log.take(n);
        assert_eq!(log.entries(), 1);
        let (changed, seen) = (inputs.number(40, 4), inputs.number(40, 4));
        log.advance(changed);
        let length = Duration::from_nanos(after);
        log.set_length(&super::window_limiter::Settings { length, own: None }, clock.clock());
        log.advance(changed + seen);
        let counts = changed < before && changed + seen < after && changed < after;
        assert_eq!(log.room(), i128::from(limit) - if counts { i128::from(n) } else { 0 });
        log.set_limit(UNLIMITED, 0);
        let mut other = log.take(n);
        assert_eq!((log.entries(), log.free()), (0, UNLIMITED));
        assert_eq!(log.correct(&mut other, n, n + 3), n + 3);
        assert_eq!(log.correct(&mut other, 0, n), n);
        log.set_limit(limit, limit.into());
        log.restore(&mark, n);
        assert_eq!((log.entries(), log.free()), (0, limit));
    });
}

/// Given takes of any size that follow each other for many times the length of a log, then it is the list of those within its length.
#[test]
fn a_log_that_is_used_for_long_is_the_list_of_what_is_within_its_length() {
    holds([1, 1], |inputs| {
        let (limit, length) = (1 + inputs.number(8, 3), 1 + inputs.number(30, 4));
        let (pause, n) = (inputs.number(9, 3), 1 + inputs.number(8, 2));
        let mut log = LogMeter::new(0, length, limit, None);
        let mut taken = Vec::<(u64, u64)>::new();
        for round in 0..60 {
            let (now, n) = (log.now() + (pause + round) % 4, 1 + (n + round) % 3);
            log.advance(now);
            taken.retain(|(at, _)| now < at + length);
            let held = |taken: &[(u64, u64)]| taken.iter().map(|(_, n)| n).sum::<u64>();
            assert_eq!(
                log.room(),
                i128::from(limit) - i128::from(held(&taken)),
                "round {round}"
            );
            if log.fits(n) {
                log.take(n);
                taken.push((now, n));
            }
            // The units of an instant are one entry.
            let instants = taken.chunk_by(|one, two| one.0 == two.0).count();
            assert_eq!((log.entries(), log.debt()), (instants, 0));
        }
        // More than the numbers hold are a debt that ends as well.
        log.advance(log.now() + length);
        log.take(u64::MAX);
        let mut mark = log.take(u64::MAX);
        assert_eq!(
            (log.debt(), log.room()),
            (u64::MAX - limit, i128::from(limit) - i128::from(u64::MAX))
        );
        assert_eq!(log.correct(&mut mark, n, u64::MAX), n);
        log.advance(log.now() + length);
        assert_eq!((log.free(), log.entries()), (limit, 0));
    });
}

/// Given units in a sliding window whose length changes, then all of them count as of now for the new length, and none is given back.
#[test]
fn units_of_a_sliding_window_count_as_of_a_change_of_its_length() {
    holds([1, 1], |inputs| {
        let clock = crate::ManualClock::new();
        let limit = 1 + inputs.number(8, 1);
        let settings = |length, own| super::window_limiter::Settings {
            length: Duration::from_nanos(length),
            own,
        };
        let (length, segments) = (1 + inputs.number(30, 3), 1 + inputs.number(4, 1) as usize);
        let mut window = WindowMeter::start(0, limit, &settings(length, segments), clock.clock());
        let (n, later, more) = (inputs.number(9, 2), inputs.number(9, 1), inputs.number(9, 1));
        let first = window.take(n);
        window.advance(later);
        let second = window.take(more);
        let (length, segments) = (1 + inputs.number(30, 3), 1 + inputs.number(4, 1));
        let held = i128::from(limit) - window.room();
        window.set_length(&settings(length, segments as usize), clock.clock());
        window.restore(&first, n);
        window.restore(&second, more);
        assert_eq!(i128::from(limit) - window.room(), held);
        let segment = length.div_ceil(segments);
        let ends = later + length.div_ceil(segment) * segment + segment;
        assert_eq!(window.fresh_at(), Some(if held > 0 { ends } else { later }));
        window.advance(ends - 1);
        assert_eq!(i128::from(limit) - window.room(), held);
        window.advance(ends);
        assert_eq!(window.free(), limit);
    });
}

/// At any rate, on any counter, and in any order of cancels and corrections, no span of time has more than the brim and the outflow, by the
/// instants at which units start, and no instant has more than the brim; a booking waits no longer than it has to when nothing was given
/// back.
#[test]
fn no_span_of_a_leaky_bucket_exceeds_its_bound() {
    holds([3, 5], |inputs| {
        let (count, nanos) = (1 + inputs.number(4, 1), 1 + inputs.number(40, 1));
        let (brim, size) = (1 + inputs.number(4, 1), 6 + inputs.number(9, 0));
        let scale = (1 << 40) + inputs.number(50, 0) * ((1 << 40) + 12_345);
        let drain = Drain::new(count, nanos.max(count), scale);
        let mut leaky = LeakyMeter::new(0, Some(drain), brim, size.max(brim));
        let mut held = Vec::<(u64, u64, [u64; 3])>::new();
        // What was taken at this instant, or settled.
        let mut at_once = 0u64;
        let mut largest = brim;
        let mut gave_back = false;
        while inputs.goes_on() {
            match inputs.below(5) {
                0 => {
                    let ticks = inputs.number(60, 3);
                    leaky.advance(leaky.now() + ticks);
                    at_once = if ticks > 0 { 0 } else { at_once };
                }
                4 if !held.is_empty() => {
                    // A little more, which fits; or a little less. The new part counts from now on, as a take of its own.
                    let (at, n, mut mark) = held.remove(inputs.below(held.len() as u64) as usize);
                    let actual = (n + inputs.number(2, 2)).saturating_sub(1);
                    if actual <= n || !leaky.fits(actual - n) {
                        let less = actual.min(n);
                        leaky.correct(&mut mark, n, less);
                        held.push((at, less, mark));
                        gave_back |= less < n;
                        at_once = at_once.saturating_sub(n - less);
                    } else {
                        assert_eq!(leaky.correct(&mut mark, n, actual), actual);
                        held.push((at, n, [0; 3]));
                        held.push((leaky.now(), actual - n, mark));
                        at_once += actual - n;
                    }
                }
                1 => {
                    let n = 1 + inputs.number(5, 1);
                    let last = held.iter().map(|take| take.0).max().unwrap_or(0);
                    match leaky.book(n) {
                        Ok((mark, due)) => {
                            assert!(due >= leaky.now() && (gave_back || due >= last));
                            held.push((due, n, mark));
                            largest = largest.max(n);
                        }
                        Err(at) => {
                            assert!(at.is_none_or(|at| at > leaky.now()));
                            assert_eq!(at.is_none(), n > size.max(brim));
                        }
                    }
                }
                2 => {
                    let n = 1 + inputs.number(5, 1);
                    if leaky.fits(n) {
                        let now = leaky.now();
                        held.push((now, n, leaky.take(n)));
                        at_once += n;
                        assert!(at_once <= brim, "{at_once} at {now}");
                    }
                }
                3 if !held.is_empty() => {
                    let (at, n, mark) = held.remove(inputs.below(held.len() as u64) as usize);
                    if mark == [0; 3] {
                        // It goes with the rest of its settled take.
                        held.push((at, n, mark));
                        continue;
                    }
                    at_once = at_once.saturating_sub(n);
                    let (room, free) = (leaky.room(), leaky.free());
                    leaky.restore(&mark, n);
                    gave_back = true;
                    assert!(leaky.room() >= room && leaky.free() <= brim && leaky.free() >= free);
                }
                _ => {}
            }
            for first in &held {
                for last in held.iter().filter(|last| last.0 >= first.0) {
                    let within = held.iter().filter(|take| (first.0..=last.0).contains(&take.0));
                    let units = u128::from(within.map(|take| take.1).sum::<u64>());
                    let flow = u128::from(last.0 - first.0 + 1) * u128::from(count) * u128::from(scale);
                    assert!(
                        (units.saturating_sub(largest.into()) * u128::from(nanos.max(count))) << 40 <= flow,
                        "{units} from {} to {}",
                        first.0,
                        last.0
                    );
                }
            }
        }
    });
}

/// What is withheld: the room is never more than that of one limiter which has had the largest limit all along.
#[test]
fn no_changes_of_a_limit_mint() {
    holds([3, 5], |inputs| {
        let mut limit = inputs.number(u64::MAX / 2, 3);
        let mut withheld = Withheld::new(limit.into());
        let (mut room, mut largest, mut taken) = (i128::from(limit), i128::from(limit), 0i128);
        // A share of more than 64 bits is that of its leading ones.
        let whole = 1 + inputs.number(1 << 20, 3);
        let (part, shift) = (1 + inputs.number(whole - 1, 2), inputs.one_of(&[0, 60, 100]));
        let to = i128::from(1 + inputs.number(u64::MAX - 1, 4)) << inputs.one_of(&[0, 30]);
        let share = Inherit::Proportional.scaled(i128::from(part) << shift, i128::from(whole) << shift, to);
        assert_eq!(share, i128::from(part) * to / i128::from(whole));
        // Nothing was taken, and each change was in proportion.
        let (mut is_full, mut away) = (true, 0);
        while inputs.goes_on() {
            match inputs.below(2) {
                0 => {
                    let n = inputs.number(limit.max(1), 2);
                    if i128::from(n) <= room {
                        room -= i128::from(n);
                        taken += i128::from(n);
                    }
                }
                _ => {
                    let rule = inputs.one_of(&[Inherit::AsIs, Inherit::Proportional, Inherit::Additive]);
                    let new = inputs.number(u64::MAX / 2, 3);
                    let wanted = rule.room(room, limit, new);
                    let scaled = rule.scaled(room, limit.into(), new.into());
                    if rule == Inherit::Additive {
                        let grown = room + i128::from(new) - i128::from(limit);
                        assert_eq!(scaled, grown.max(room.min(0)).min(new.into()));
                    }
                    is_full &= rule == Inherit::Proportional && limit > 0;
                    assert!(
                        wanted <= new.into()
                            && scaled <= new.into()
                            && (room > 0 || scaled <= room.max(0) + i128::from(new))
                    );
                    assert!(room < 0 || scaled >= 0, "no change alone puts a bucket into debt");
                    match rule {
                        Inherit::AsIs => assert_eq!(wanted, room.min(new.into())),
                        Inherit::Additive => assert_eq!(i128::from(new) - wanted, (i128::from(limit) - room).max(0)),
                        _ if room > 0 && limit > 0 => {
                            // As many of the new limit as of the old one, rounded down.
                            let rest = room * i128::from(new) - wanted * i128::from(limit);
                            assert!((0..i128::from(limit)).contains(&rest));
                        }
                        _ => assert_eq!(wanted, room.min(new.into())),
                    }
                    let (kept, grown) = (room, (i128::from(new) - largest).max(0));
                    (withheld, room) = withheld.change(kept, wanted, new.into());
                    limit = new;
                    largest += grown;
                    // What changes have taken away may come back until the limit is the largest again.
                    assert!(room - kept <= grown + away, "{} of {away}", room - kept);
                    away = if largest > new.into() { away + kept - room } else { 0 };
                    assert!(room <= wanted && room >= kept.min(wanted));
                    assert!(!is_full || taken > 0 || room == i128::from(new), "{room} of {new}");
                }
            }
            assert!(
                room <= largest - taken,
                "{room} of {largest}, of which {taken} were taken"
            );
        }
    });
}

/// A line at a rational rate: what flows out is the exact amount in grains, rounded down, in steps of any lengths.
#[test]
fn a_drain_loses_nothing_and_is_exact() {
    holds([2, 3], |inputs| {
        let count = 1 + inputs.number(1_000_000_000, 3);
        let nanos = (1 + inputs.number(1 << 54, 4)).max(count);
        let mut drain = Drain::new(count, nanos, 1 << 40);
        let (mut ticks, mut out) = (0u128, 0u128);
        while inputs.goes_on() {
            let step = inputs.number(1 << 60, 2);
            if ticks + u128::from(step) > 1 << 62 {
                return;
            }
            // Grains that take time: when they are told to have flowed out they have, and not a tick before.
            let wanted = u128::from(inputs.number(u64::MAX, 3)) << inputs.one_of(&[0, 39]);
            let at = drain.ticks_until(wanted).expect("it flows");
            if at < 1 << 62 {
                assert!({ drain }.pass(at) >= wanted && (at == 0 || { drain }.pass(at - 1) < wanted));
            }
            assert_eq!(
                drain.takes_no_tick(wanted),
                wanted < (u128::from(count) << GRAIN) / u128::from(nanos)
            );
            ticks += u128::from(step);
            out += drain.pass(step);
            let units = ticks * u128::from(count);
            let (whole, part) = (units / u128::from(nanos), units % u128::from(nanos));
            assert_eq!(out, (whole << GRAIN) + (part << GRAIN) / u128::from(nanos));
        }
        drain.run_dry();
        assert_eq!(
            drain.ticks_until(grains(1)),
            Drain::new(count, nanos, 1 << 40).ticks_until(grains(1))
        );
        let interval = drain.interval().expect("it flows");
        let exact = (u128::from(nanos) << 32).div_ceil(count.into());
        assert_eq!(interval, exact);
    });
}

/// On any counter a drain is the line of its rate, never faster, and slower by one in 2^28 at most; in steps of any lengths it is the same
/// line, and an instant that is told is the first.
#[test]
fn a_drain_of_any_counter_is_never_faster() {
    holds([2, 3], |inputs| {
        let (count, nanos) = (1 + inputs.number(1 << 10, 2), 1 + inputs.number(1 << 54, 3));
        let scale = (1 << 40) - 1 + inputs.number(7 << 40, 2) - inputs.one_of(&[0, 1 << 39]);
        let mut drain = Drain::new(count, nanos.max(count), scale);
        let whole = drain;
        let nanos = u128::from(nanos.max(count));
        // The products are below 2^128.
        let exact = |ticks: u64| ((u128::from(ticks) * u128::from(count) * u128::from(scale)) << GRAIN) / (nanos << 40);
        let stopped = Drain::new(0, 1, scale);
        assert!(!drain.is_stopped() && stopped.is_stopped());
        assert_eq!((stopped.interval(), stopped.ticks_until(1)), (None, None));
        let (mut ticks, mut out) = (0u64, 0u128);
        while inputs.goes_on() {
            let step = inputs.number(1 << 24, 2);
            let wanted = u128::from(inputs.number(1 << 40, 3)) << inputs.one_of(&[0, 24]);
            let at = drain.ticks_until(wanted).expect("it flows");
            if at < 1 << 40 {
                assert!({ drain }.pass(at) >= wanted && (at == 0 || { drain }.pass(at - 1) < wanted));
            }
            let is_exact = scale == 1 << 40;
            let in_a_tick = { whole }.pass(1);
            assert_eq!(whole.takes_no_tick(wanted), wanted < in_a_tick + u128::from(!is_exact));
            assert_eq!(
                whole.is_brief(step),
                !is_exact && u128::from(step) * u128::from(scale) <= 16 << 40
            );
            ticks += step;
            out += drain.pass(step);
            assert_eq!(out, { whole }.pass(ticks));
            assert!(
                out <= exact(ticks) && exact(ticks) - out <= 1 + (exact(ticks) >> 28),
                "{out} of {} in {ticks}",
                exact(ticks)
            );
        }
    });
}

/// The line of a warm-up.
#[test]
fn a_warm_up_costs_the_area_under_its_line() {
    holds([1, 2], |inputs| {
        let (count, nanos) = (1 + inputs.number(1_000, 3), 1 + inputs.number(1_000_000_000, 4));
        let (period, cold) = (1 + inputs.number(1 << 40, 30), 1 + inputs.number(99, 2) as u32);
        // Some store so little that their line has no threshold: half of what a period yields is less than a grain.
        let is_steep = count * period < 64 && inputs.below(4) == 3;
        let nanos = if is_steep { ((count * period) << 25) / 3 } else { nanos };
        let interval = (u128::from(nanos) << 32).div_ceil(count.into());
        let yielded = u128::from(count) * u128::from(period) / u128::from(nanos);
        let Some(shape) = Shape::new((count, nanos), period, cold, interval, period) else {
            return assert!(yielded > u128::from(Shape::MAX_PERMITS / 2));
        };
        assert!(yielded <= u128::from(Shape::MAX_PERMITS / 2));
        let max = Pace::Shaped(shape).max();
        let stored = inputs.number(max, 60) % (max + 1);
        let (some, more) = (inputs.number(u64::from(u32::MAX), 3), inputs.number(1_000, 3));
        let cost = |stored: u64, n: u64| shape.cost(stored, n);
        let left = |n: u64| u64::try_from(u128::from(stored).saturating_sub(u128::from(n) << 24)).unwrap_or(0);
        // Up to the rounding of each part.
        let parts = cost(stored, some) + cost(left(some), more);
        let slack = 2 + (interval >> 22) * u128::from(cold);
        assert!(
            parts.abs_diff(cost(stored, some + more)) <= slack,
            "{parts} {}",
            cost(stored, some + more)
        );
        let (least, dearest) = (
            interval * u128::from(some),
            interval * u128::from(some) * u128::from(cold),
        );
        assert!(cost(stored, some) >= least && cost(stored, some) <= dearest + slack);
        assert!(cost(0, some) == least && cost(max, some) >= cost(stored, some));
        let (warm, slope) = (shape.slope_at(0), shape.slope_at(stored));
        // Of less than a permit the line is lost in its rounding.
        assert!(warm == interval && slope >= warm);
        assert!(yielded == 0 || slope <= warm * u128::from(cold) + slack);
        // The line rises, so a permit costs no less than at the lower end of its part of the line, and no more than at the upper one.
        let (upper, lower) = (shape.slope_at(stored), shape.slope_at(left(1)));
        let one = cost(stored, 1);
        assert!(lower <= one + slack && one <= upper + slack, "{lower} {one} {upper}");
        // The walk from cold to warm lasts a period, and so does the way back.
        let walk = cost(max, max.div_ceil(1 << 24));
        let stable = interval * yielded;
        assert!(walk + slack >= stable, "{walk} {stable}");
        assert_eq!(shape.idle_for(max), if max == 0 { 0 } else { period });
    });
}

/// A warm-up as the sequence of its takes. Instants are fine: 2^32 in a tick.
#[derive(Clone, Debug)]
struct Paced {
    now: u64,
    pace: Pace,
    burst: u64,
    /// When the first take may start, and the grains that are stored then.
    base: (u128, u64),
    /// Whose, when, and how many; also what others cost more.
    takes: Vec<(usize, u64, u64)>,
    latest: Option<usize>,
}

impl Paced {
    /// Without a trace of what was taken.
    fn anew(&mut self, pace: Pace, burst: u64, base: (u128, u64)) {
        (self.pace, self.burst, self.base) = (pace, burst, base);
        self.takes.clear();
        self.latest = None;
    }

    /// What `at` finds, after `state`: idle time of a tick at least is counted in 2^-12 ticks, and stores a part of all as long as the
    /// period's. Rounded down.
    fn idle(&self, (free_at, stored): (u128, u64), at: u64) -> (u128, u64) {
        let Pace::Shaped(shape) = self.pace else {
            return (free_at, stored);
        };
        let at = u128::from(at) << 32;
        if at < free_at + (1 << 32) {
            return (free_at, stored);
        }
        let gained = ((at - free_at) >> 20) * u128::from(self.pace.max()) / (u128::from(shape.period) << 12);
        let stored = (u128::from(stored) + gained).min(self.pace.max().into());
        (at, stored as u64)
    }

    /// The state that `at` finds.
    fn state(&self, at: u64) -> (u128, u64) {
        let after = self.takes.iter().fold(self.base, |state, &(_, at, n)| {
            let (free_at, stored) = self.idle(state, at);
            let Pace::Shaped(shape) = self.pace else {
                return (free_at, stored);
            };
            let left = u128::from(stored).saturating_sub(u128::from(n) << 24);
            (free_at + shape.cost(stored, n), left as u64)
        });
        self.idle(after, at)
    }

    fn is_free(&self, at: u64) -> bool {
        self.state(at).0 <= u128::from(at) << 32
    }

    fn is_cold(&self, at: u64) -> bool {
        self.is_free(at) && self.state(at).1 == self.pace.max()
    }
}

impl Reference for Paced {
    const MOST: u64 = 40;

    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    fn free(&self) -> u64 {
        match self.pace {
            Pace::Unlimited => u64::MAX,
            Pace::Shaped(_) if self.is_free(self.now) => self.burst,
            _ => 0,
        }
    }

    /// One request at a time, of any size.
    fn worth(&self, _: u64) -> u64 {
        self.burst
    }

    fn take(&mut self, id: usize, n: u64) {
        if n > 0 && matches!(self.pace, Pace::Shaped(_)) {
            self.takes.push((id, self.now, n));
            self.latest = Some(id);
        }
    }

    /// The latest take leaves no trace, others give nothing back.
    fn restore(&mut self, id: usize) {
        if self.latest == Some(id) {
            self.takes.retain(|take| take.0 != id);
            self.latest = None;
        }
    }

    fn correct(&mut self, id: usize, charged: u64, actual: u64) -> u64 {
        if self.latest == Some(id) {
            // It counts behind what others were charged meanwhile.
            let whose = self.takes.iter().position(|take| take.0 == id).expect("it is there");
            let (id, at, _) = self.takes.remove(whose);
            self.takes.push((id, at, actual));
        } else if actual >= charged && matches!(self.pace, Pace::Shaped(_)) {
            self.takes.push((NONE, self.now, actual - charged));
        }
        actual
    }
}

/// Given takes, debts, refunds, corrections, changes of the rate and new starts in any order, then a warm-up is the sequence of its takes:
/// the latest is undone as if it had not been, no other gives anything back, and idle time stores up to all.
#[test]
fn a_warm_up_is_the_sequence_of_its_takes() {
    holds([2, 3], |inputs| {
        let pace = |inputs: &mut Inputs| {
            let (count, nanos) = (1 + inputs.number(2, 0), 1 + inputs.number(11, 1));
            let (period, cold) = (1 + inputs.number(60, 1), 1 + inputs.number(4, 1) as u32);
            let interval = (u128::from(nanos) << 32).div_ceil(count.into());
            Pace::Shaped(Shape::new((count, nanos), period, cold, interval, period).expect("it is small"))
        };
        let (first, burst) = (pace(inputs), 3 - inputs.number(3, 0));
        let reference = Paced {
            now: 0,
            pace: first,
            burst,
            base: (0, first.max()),
            takes: Vec::new(),
            latest: None,
        };
        let meter = WarmupMeter::new(0, first, burst);
        obeys(inputs, (meter, reference), 1, |inputs, warmup, reference, _| {
            let now = warmup.now();
            let state = reference.state(now);
            assert_eq!(warmup.stored(), (state.1, reference.pace.max()));
            let interval = match reference.pace {
                Pace::Shaped(shape) => Some(shape.slope_at(state.1)),
                _ => None,
            };
            assert_eq!(warmup.interval(), interval);
            let fresh = warmup.fresh_at().expect("it comes");
            if interval.is_some() {
                assert!(reference.is_cold(fresh), "at {fresh}");
                // Up to the rounding of the instant at which it is free.
                assert!(fresh <= now + 1 || !reference.is_cold(fresh - 2), "before {fresh}");
            }
            match inputs.below(4) {
                0 => {
                    warmup.clear();
                    let base = (u128::from(now) << 32, reference.pace.max());
                    reference.anew(reference.pace, reference.burst, base);
                }
                1 => {
                    let (pace, stored) = (
                        inputs.one_of(&[Pace::Stopped, Pace::Unlimited]),
                        inputs.number(1 << 30, 1),
                    );
                    warmup.set_pace(pace, 0, stored);
                    reference.anew(pace, 0, (state.0.max(u128::from(now) << 32), 0));
                }
                _ => {
                    let (pace, stored) = (pace(inputs), inputs.number(1 << 30, 1) << 22);
                    warmup.set_pace(pace, burst, stored);
                    reference.anew(
                        pace,
                        burst,
                        (state.0.max(u128::from(now) << 32), stored.min(pace.max())),
                    );
                }
            }
            None
        });
    });
}
