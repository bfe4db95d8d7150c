//! Appointments: an instant for a refused client, and a place that is kept for a while from then on.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The places of a waiting room, at most one per key.
///
/// ```text
///  none --book--> early --at--> open --redeem--> none
///                   |             `---grace over, or `book` near its end---> none: missed
///                   `-book: the same place; `redeem` changes nothing
/// ```
#[derive(Debug)]
pub(super) struct Appointments<K> {
    places: HashMap<K, Place>,
    /// The owners of the places, in the order of instants. Together these have the same places as `places`.
    early: BTreeMap<Place, K>,
    open: BTreeMap<Place, K>,
    number: u64,
    /// The instant of the next place, and its distance from the one before.
    next: u64,
    interval: Option<u64>,
    most: usize,
    /// How long a place is kept, in nanoseconds.
    grace: u64,
    /// The least time, in nanoseconds, that a place must have left when a client is given it.
    least: u64,
    missed: u64,
    /// How many places one call opens, and how many it drops.
    pace: usize,
}

/// How many places one call opens and drops at most: after a long silence no call does all of that work.
const PACE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    at: u64,
    number: u64,
}

/// The result of asking for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Booked {
    /// The key has a new place, at this instant.
    New(u64),
    /// The key has a place, and may come from this instant on.
    Known(u64),
    /// No place: the client may not come before this instant, and that is too late for a place.
    Beyond(u64),
    /// No place is free until this instant: all have begun by then, or, if all have, the first is over. It is later
    /// than now, unless there are no places at all.
    Full(u64),
}

impl<K: Hash + Eq + Copy> Appointments<K> {
    /// At most `most` places, each kept for `grace` nanoseconds, and given out while at least `least` of these are left.
    pub(super) fn new(most: usize, grace: u64, least: u64) -> Self {
        Self {
            places: HashMap::new(),
            early: BTreeMap::new(),
            open: BTreeMap::new(),
            number: 0,
            next: 0,
            interval: None,
            most,
            grace,
            least,
            missed: 0,
            pace: PACE,
        }
    }

    /// The number of places taken, with those that are over and not yet dropped.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// True if the instant of a place is still to come.
    pub(super) fn is_awaited(&self, now: u64) -> bool {
        self.early.last_key_value().is_some_and(|(place, _)| place.at > now)
    }

    /// The number of places that ended unused.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }

    /// A place for `key`, not before `now`, and `interval` nanoseconds behind the one before. After a change of the interval
    /// it is behind all places still to come, as if they had the new interval. Promised instants stay, and a new place
    /// is at least `interval` from each of them: in a gap that is wide enough, or else behind the last. So no span
    /// holds more than the fastest rate at which its places were given out allows.
    ///
    /// From one change of the interval to the next this walks once over the places that are still to come, in all.
    ///
    /// A key keeps its place, and may come at once when its instant has come. If too little of its time is left, it
    /// gets another: the place could be over before the key is back.
    ///
    /// A place before `not_before` is moved there; two that are moved may share an instant. If `not_before` is later
    /// than all places and the grace reach, there is none: it would be taken for that long.
    pub(super) fn book(&mut self, key: K, now: u64, interval: u64, not_before: u64) -> Booked {
        self.pass(now);
        let back = now.max(not_before);
        match self.places.get(&key) {
            Some(place) if back.saturating_add(self.least) <= place.at.saturating_add(self.grace) => {
                return Booked::Known(place.at.max(back));
            }
            _ if back > now.saturating_add(interval.saturating_mul(self.most as u64).max(self.grace)) => {
                return Booked::Beyond(back);
            }
            Some(_) => {
                self.missed += 1;
                self.cancel(key);
            }
            None => {}
        }
        if self.len() >= self.most {
            let last = self
                .early
                .last_key_value()
                .map(|(place, _)| place.at)
                .filter(|&at| at > now);
            let ends = |place: &Place| place.at.saturating_add(self.grace).saturating_add(1);
            let over = || self.open.first_key_value().map(|(place, _)| ends(place));
            return Booked::Full(last.or_else(over).unwrap_or(now));
        }
        if self.interval.replace(interval) != Some(interval) {
            let come = self.early.range(..Place::first_after(now)).count();
            let ahead = (self.early.len() - come) as u64;
            self.next = now.saturating_add(interval.saturating_mul(ahead));
        }
        let slot = self.gap_from(self.next.max(now), now, interval);
        let at = slot.max(not_before);
        let place = Place {
            at,
            number: self.number,
        };
        self.number += 1;
        self.next = slot.saturating_add(interval);
        self.places.insert(key, place);
        self.early.insert(place, key);
        Booked::New(at)
    }

    /// The first instant from `at` on that is at least `interval` from every place still to come at `now`.
    fn gap_from(&self, mut at: u64, now: u64, interval: u64) -> u64 {
        let near = Place::first_after(now.max(at.saturating_sub(interval)));
        for place in self.early.range(near..).map(|(place, _)| place) {
            if place.at >= at.saturating_add(interval) {
                break;
            }
            at = place.at.saturating_add(interval);
        }
        at
    }

    /// Takes the place of `key`, if its instant has come and its grace is not over.
    pub(super) fn redeem(&mut self, key: K, now: u64) -> bool {
        self.pass(now);
        let is_open = |place: &Place| place.at <= now && !self.is_over(place, now);
        let open = self.places.get(&key).is_some_and(is_open);
        open && self.cancel(key)
    }

    /// Gives up the place of `key`, if it has one.
    pub(super) fn cancel(&mut self, key: K) -> bool {
        let Some(place) = self.places.remove(&key) else {
            return false;
        };
        if self.early.remove(&place).is_none() {
            self.open.remove(&place);
        }
        true
    }

    fn is_over(&self, place: &Place, now: u64) -> bool {
        place.at.saturating_add(self.grace) < now
    }

    /// Opens the places whose instant has come, and drops those whose grace is over: the earliest, at most `pace` of
    /// each. While any that is over is left, each call drops one at least.
    fn pass(&mut self, now: u64) {
        for _ in 0..self.pace {
            let Some(entry) = self.early.first_entry().filter(|entry| entry.key().at <= now) else {
                break;
            };
            let (place, key) = entry.remove_entry();
            self.open.insert(place, key);
        }
        for _ in 0..self.pace {
            let Some((_, key)) = self
                .open
                .first_key_value()
                .filter(|(place, _)| self.is_over(place, now))
            else {
                break;
            };
            self.cancel(*key);
            self.missed += 1;
        }
    }
}

impl Place {
    /// Before all places that are later than `at`, and after all others.
    fn first_after(at: u64) -> Self {
        Self {
            at: at.saturating_add(1),
            number: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Appointments, Booked, PACE};
    use std::collections::HashMap;

    const GRACE: u64 = 20;
    const LEAST: u64 = 5;
    const MOST: usize = 4;

    #[test]
    fn places_are_an_interval_apart_and_open_for_the_grace() {
        let mut room = Appointments::new(MOST, GRACE, LEAST);
        assert_eq!(room.book('a', 100, 10, 100), Booked::New(100));
        assert_eq!(room.book('b', 100, 10, 100), Booked::New(110));
        assert_eq!(room.book('b', 105, 10, 105), Booked::Known(110));
        assert!(!room.redeem('b', 109), "early");
        assert!(room.redeem('b', 110));
        assert!(!room.redeem('b', 110), "once");
        assert!(room.redeem('a', 120), "the last instant");
        assert_eq!(room.book('a', 200, 10, 200), Booked::New(200));
        assert!(!room.redeem('a', 221), "too late");
        assert_eq!((room.len(), room.missed()), (0, 1));
    }

    #[test]
    fn a_place_is_given_out_while_enough_of_its_time_is_left() {
        let mut room = Appointments::new(1, GRACE, LEAST);
        assert_eq!(room.book('a', 0, 10, 0), Booked::New(0));
        assert_eq!(room.book('a', 15, 10, 15), Booked::Known(15), "it may come at once");
        assert_eq!(room.book('a', 16, 10, 16), Booked::New(16));
        assert_eq!((room.len(), room.missed()), (1, 1));
        assert!(room.redeem('a', 36));
    }

    #[test]
    fn a_full_room_says_when_all_of_it_has_come() {
        let mut room = Appointments::new(2, GRACE, LEAST);
        for key in ['a', 'b'] {
            let _ = room.book(key, 0, 10, 0);
        }
        assert_eq!(room.book('c', 5, 10, 5), Booked::Full(10));
        assert_eq!(room.book('b', 5, 10, 5), Booked::Known(10));
        assert!(room.redeem('a', 5));
        assert_eq!(room.book('c', 5, 10, 5), Booked::New(20));
        assert_eq!(room.book('d', 25, 10, 25), Booked::Full(31), "the first is over");
        assert_eq!(room.book('d', 31, 10, 31), Booked::New(31));
    }

    /// Given two places at a slow rate, then at a faster one the next are behind two of the faster. At a slower one
    /// they are behind all that are still to come, as if those had its interval.
    #[test]
    fn another_interval_counts_the_places_still_to_come() {
        let mut room = Appointments::new(100, GRACE, LEAST);
        let mut book = |key, now, interval| match room.book(key, now, interval, now) {
            Booked::New(due) => due,
            booked => panic!("{booked:?}"),
        };
        assert_eq!([book(0, 0, 100), book(1, 0, 100), book(2, 0, 100)], [0, 100, 200]);
        assert_eq!([book(3, 0, 10), book(4, 0, 10)], [20, 30], "the first may come already");
        assert_eq!([book(5, 35, 50), book(6, 35, 50)], [150, 250]);
    }

    /// Given a thousand places at one rate and a thousand at twice that, then no span holds more than the faster rate
    /// allows.
    #[test]
    fn a_faster_rate_fills_the_gaps_between_promised_instants() {
        let mut room = Appointments::new(usize::MAX, GRACE, LEAST);
        let mut dues = Vec::new();
        for (key, interval) in (0..1_000)
            .map(|key| (key, 100))
            .chain((1_000..2_000).map(|key| (key, 50)))
        {
            match room.book(key, 0, interval, 0) {
                Booked::New(due) => dues.push(due),
                booked => panic!("{booked:?}"),
            }
        }
        dues.sort_unstable();
        let most = dues
            .iter()
            .map(|&from| dues.iter().filter(|&&due| (from..=from + 1_000).contains(&due)).count());
        assert_eq!(most.max(), Some(21));
        assert_eq!(dues.last(), Some(&124_900), "and no gap is left");
    }

    /// Given many places that are over at the next call, then no call drops all of them, and none of them counts.
    #[test]
    fn a_call_drops_a_bounded_number_of_places() {
        let mut room = Appointments::new(usize::MAX, GRACE, LEAST);
        for key in 0..1_000 {
            let _ = room.book(key, 0, 10, 0);
        }
        let now = 1_000_000;
        assert_eq!(room.book(1_000, now, 20, now), Booked::New(now), "behind no other");
        assert_eq!((room.len(), room.missed()), (1_001 - PACE, PACE as u64));
        assert!(!room.redeem(999, now), "over, and still there");
        assert_eq!(room.missed(), 2 * PACE as u64);
        assert_eq!(room.book(999, now, 20, now), Booked::New(now + 20));
        assert!(room.redeem(1_000, now));
        for _ in 0..1_000 / PACE {
            assert!(!room.redeem(1_001, now));
        }
        assert_eq!((room.len(), room.missed()), (1, 1_000));
    }

    #[test]
    fn no_key_is_given_a_place_that_is_over_when_it_may_come() {
        let mut room = Appointments::new(4, GRACE, LEAST);
        assert_eq!(room.book('a', 0, 10, 30), Booked::New(30), "moved");
        assert_eq!(room.book('b', 0, 10, 0), Booked::New(10), "as far as if it were not");
        assert_eq!(room.book('b', 0, 10, 25), Booked::Known(25), "in time");
        assert_eq!(room.book('b', 0, 10, 26), Booked::New(26), "not in time");
        assert_eq!(room.missed(), 1);
        assert_eq!(room.book('c', 0, 10, 41), Booked::Beyond(41), "4 places, 10 apart");
        assert_eq!(room.len(), 2);
    }

    /// Given any keys that book, come and cancel at any time, then a key that comes in its time has its place and no other key has one;
    /// there are never more than allowed; and a new place is the first instant, behind the one before, that is an interval from all
    /// places still to come. This holds for any pace.
    #[test]
    fn every_promise_is_kept_and_nothing_else() {
        crate::laws::holds([3, 4], |inputs| {
            let most = 1 + inputs.number(3, 1) as usize;
            let pace = 1 + inputs.number(3, 0) as usize;
            let mut room = Appointments {
                pace,
                ..Appointments::new(most, GRACE, LEAST)
            };
            let (mut promised, mut now) = (HashMap::<u64, u64>::new(), 0);
            let (mut booked, mut gone) = (0, 0);
            // The instant behind the last place, and its interval.
            let (mut next, mut apart) = (0, None);
            while inputs.goes_on() {
                promised.retain(|_, &mut due| due + GRACE >= now);
                let key = inputs.number(5, 2);
                match inputs.below(4) {
                    0 | 1 => {
                        let interval = inputs.number(9, 0) + inputs.one_of(&[0, 3]);
                        let later = inputs.number(59, 0).saturating_sub(20) + inputs.one_of(&[0, 16, GRACE, GRACE + 1]);
                        let back = now + later;
                        let known = promised.get(&key).copied().filter(|&due| back + LEAST <= due + GRACE);
                        let (len, missed) = (room.len(), room.missed());
                        match (room.book(key, now, interval, back), known) {
                            (Booked::Known(due), Some(known)) => assert_eq!(due, known.max(back)),
                            (Booked::New(due), None) => {
                                promised.remove(&key);
                                let to_come: Vec<_> = promised.values().copied().filter(|&other| other > now).collect();
                                if apart != Some(interval) {
                                    (next, apart) = (now + interval * to_come.len() as u64, Some(interval));
                                }
                                let is_free =
                                    |slot: &u64| to_come.iter().all(|other| slot.abs_diff(*other) >= interval);
                                let slot = (next.max(now)..).find(is_free).expect("behind all");
                                assert_eq!(due, slot.max(back), "{to_come:?}");
                                next = slot + interval;
                                booked += 1;
                                promised.insert(key, due);
                            }
                            (Booked::Beyond(due), None) => {
                                assert_eq!(due, back);
                                assert!(later > GRACE && later > interval * most as u64);
                                continue;
                            }
                            (Booked::Full(end), None) => {
                                promised.remove(&key);
                                assert_eq!(promised.len(), most);
                                let to_come = promised.values().copied().filter(|&due| due > now).max();
                                let first = promised.values().copied().min().unwrap_or(0);
                                assert_eq!(end, to_come.unwrap_or(first + GRACE + 1));
                            }
                            (booked, known) => panic!("{booked:?} beside {known:?}"),
                        }
                        assert!(known.is_some() || later <= GRACE.max(interval * most as u64));
                        assert!(room.len() <= len + 1 && room.missed() <= missed + 1 + pace as u64);
                    }
                    2 if inputs.below(2) == 0 => {
                        let open = promised.get(&key).is_some_and(|&due| due <= now);
                        assert_eq!(room.redeem(key, now), open);
                        if open {
                            gone += 1;
                            promised.remove(&key);
                        }
                    }
                    2 => {
                        let had = promised.remove(&key).is_some();
                        let cancelled = room.cancel(key);
                        assert!(cancelled || !had);
                        gone += u64::from(cancelled);
                    }
                    _ => now += inputs.number(14, 0) + inputs.one_of(&[1, 3, GRACE, GRACE + 1]),
                }
                assert_eq!(booked, gone + room.missed() + room.len() as u64);
                assert!(room.len() <= most && room.len() == room.early.len() + room.open.len());
                // What is over and not dropped yet is not awaited.
                assert_eq!(room.is_awaited(now), promised.values().any(|&due| due > now));
            }
        });
    }
}
