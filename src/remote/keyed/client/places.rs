//! The heads of policies: each has one ask at a key, which the store is asked anew as long as the head stays.
//!
//! Of heads that ask for the same the oldest is served first: it swaps its wait with a younger one that was granted, and is not redeemed
//! yet. To the store both waits are the same.

use super::{Arc, BTreeMap, Client, End, Instant, Key, LegUnits, Legs, Reason, Waker};

/// The number of a place, and the address of the leg in whose queue it is.
pub(in crate::remote::keyed) type PlaceId = (u64, usize);

/// The ask of a head that has joined.
#[derive(Debug)]
pub(super) struct PlaceAsk {
    /// The age of the head.
    age: u64,
    waker: Waker,
    legs: Arc<Legs>,
    units: LegUnits,
    /// Its wait, while the store is asked, and until the head takes what it was granted.
    wait: Option<u64>,
    /// The leg that has refused it until an instant, where that is not remembered for the key.
    refused: Option<(usize, Instant)>,
}

/// What a head, or one who only asks, finds out without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote::keyed) enum Looked {
    /// It was granted.
    Ready,
    /// The store is asked. It keeps others waiting for this leg, until then.
    Asked(Option<(usize, Instant)>),
    /// The store is to be asked. It keeps others waiting for this leg, until then.
    Unasked(Option<(usize, Instant)>),
    /// The leg refuses until then.
    Refused(usize, Instant),
    /// The leg never gives that number of units.
    Oversized(usize),
    /// The store is not asked.
    Failed(Reason),
}

impl Client {
    /// True when the head of `place` has joined.
    pub(in crate::remote::keyed) fn has_joined(&self, place: PlaceId) -> bool {
        self.places.contains_key(&place)
    }

    /// How an ask for `units` of `key` stands, for one that has no place.
    pub(in crate::remote::keyed) fn look(&self, key: &Key, legs: &Arc<Legs>, units: &LegUnits, now: Instant) -> Looked {
        if let Some(reason) = self.refuses(key, now) {
            return Looked::Failed(reason);
        }
        match self.refused(key, legs, units, now) {
            Some((leg, until)) => Looked::Refused(leg, until),
            None => Looked::Unasked(self.told(key, legs, now)),
        }
    }

    /// How the ask of the head of `place` stands. The end of one that was refused is taken.
    pub(in crate::remote::keyed) fn look_of_place(
        &mut self,
        place: PlaceId,
        key: &Key,
        legs: &Arc<Legs>,
        units: &LegUnits,
        now: Instant,
    ) -> Looked {
        self.adopt(place, legs, units);
        let asked = self.places.get(&place).and_then(|ask| ask.wait);
        if let Some(number) = asked {
            if self.is_waiting(number) {
                return Looked::Asked(self.told(key, legs, now));
            }
            let end = self.waits.get(&number).and_then(|wait| wait.end.as_ref());
            if matches!(end, Some(End::Granted { .. } | End::Uncounted)) {
                return Looked::Ready;
            }
            match self.take_end(place, key, legs, units, now) {
                Some(End::Refused(leg, None)) => return Looked::Oversized(leg),
                Some(End::Failed(reason)) => return Looked::Failed(reason),
                _ => {}
            }
        }
        let refused = self.places.get(&place).and_then(|ask| ask.refused);
        match self.look(key, legs, units, now) {
            Looked::Unasked(_) if refused.is_some_and(|(_, until)| now < until) => {
                let (leg, until) = refused.unwrap_or((0, now));
                Looked::Refused(leg, until)
            }
            looked => looked,
        }
    }

    /// The place is of another head by now: what it has asked for is given up.
    fn adopt(&mut self, place: PlaceId, legs: &Arc<Legs>, units: &LegUnits) {
        let Some(ask) = self.places.get_mut(&place) else { return };
        if ask.units == *units && ask.legs.is(legs) {
            return;
        }
        let given_up = ask.wait.take();
        (ask.units, ask.legs, ask.refused) = (*units, Arc::clone(legs), None);
        if let Some(number) = given_up {
            let wakers = self.leave(number);
            self.stale.extend(wakers.into_iter().flatten());
        }
    }

    /// The head of `place`, of this age, joins, or goes on: the store is asked, unless it was, or has refused until an instant.
    pub(in crate::remote::keyed) fn stand(
        &mut self,
        place: PlaceId,
        key: &Key,
        legs: &Arc<Legs>,
        units: &LegUnits,
        (age, waker): (u64, &Waker),
        now: Instant,
    ) {
        self.places.entry(place).or_insert_with(|| PlaceAsk {
            age,
            waker: waker.clone(),
            legs: Arc::clone(legs),
            units: *units,
            wait: None,
            refused: None,
        });
        match self.look_of_place(place, key, legs, units, now) {
            Looked::Unasked(_) => {
                let number = self.next_wait();
                if let Some(ask) = self.places.get_mut(&place) {
                    (ask.wait, ask.refused) = (Some(number), None);
                }
                self.join(number, true, key, legs, *units, waker.clone(), now);
                self.on_news(number, waker.clone());
                self.take_from_youngest(place, age, number);
            }
            Looked::Refused(..) => {
                if let Some(refused) = self.keys.get_mut(key).and_then(|state| state.refused.as_mut()) {
                    self.stale.extend(refused.heads.insert(place, waker.clone()));
                }
            }
            _ => {}
        }
    }

    /// A head that has just begun to wait has the grant of the youngest head that asks for the same.
    fn take_from_youngest(&mut self, place: PlaceId, age: u64, number: u64) {
        let granted = |other: &PlaceAsk| {
            let end = other.wait.and_then(|wait| self.waits.get(&wait)?.end.as_ref());
            matches!(end, Some(End::Granted { .. })) && self.are_alike(other.wait, number)
        };
        let younger = self
            .places
            .iter()
            .filter(|(_, other)| other.age > age && granted(other));
        let youngest = younger.max_by_key(|(_, other)| other.age).map(|(&other, _)| other);
        if let Some(other) = youngest.filter(|_| self.is_waiting(number)) {
            self.swap_waits(place, other);
        }
    }

    /// The wait `number` is about to be granted: it goes to the oldest head that asks for the same.
    pub(super) fn hand_to_oldest(&mut self, number: u64) {
        let own = self.places.iter().find(|(_, ask)| ask.wait == Some(number));
        let Some((&own, &PlaceAsk { age, .. })) = own else {
            return;
        };
        let waits = |other: &PlaceAsk| {
            let is_waiting = other.wait.is_some_and(|wait| self.is_waiting(wait));
            other.age < age && is_waiting && self.are_alike(other.wait, number)
        };
        let older = self.places.iter().filter(|(_, other)| waits(other));
        let oldest = older.min_by_key(|(_, other)| other.age).map(|(&other, _)| other);
        if let Some(oldest) = oldest {
            self.swap_waits(own, oldest);
        }
    }

    /// True when both waits ask for the same.
    fn are_alike(&self, one: Option<u64>, other: u64) -> bool {
        let waits = one.and_then(|one| Some((self.waits.get(&one)?, self.waits.get(&other)?)));
        waits.is_some_and(|(a, b)| a.key == b.key && a.units == b.units && a.legs.is(&b.legs))
    }

    /// Two heads that ask for the same have each other's wait from now on.
    fn swap_waits(&mut self, one: PlaceId, other: PlaceId) {
        let (Some(mut a), Some(mut b)) = (self.places.remove(&one), self.places.remove(&other)) else {
            return;
        };
        std::mem::swap(&mut a.wait, &mut b.wait);
        for (place, ask) in [(one, a), (other, b)] {
            let wait = ask.wait.and_then(|number| self.waits.get_mut(&number));
            if let Some(wait) = wait.filter(|wait| wait.end.is_none()) {
                let news = wait.news.is_some().then(|| ask.waker.clone());
                let old = [
                    wait.waker.replace(ask.waker.clone()),
                    std::mem::replace(&mut wait.news, news),
                ];
                self.stale.extend(old.into_iter().flatten());
            }
            self.places.insert(place, ask);
        }
    }

    /// Takes the end of the ask of `place`, if it has ended. A refusal that is not remembered for the key is kept with the place.
    pub(in crate::remote::keyed) fn take_end(
        &mut self,
        place: PlaceId,
        key: &Key,
        legs: &Arc<Legs>,
        units: &LegUnits,
        now: Instant,
    ) -> Option<End> {
        let number = self.places.get(&place).filter(|ask| ask.units == *units)?.wait?;
        let (end, _) = self.poll(number, None);
        let end = end?;
        let is_remembered = self.refused(key, legs, units, now).is_some();
        if let Some(ask) = self.places.get_mut(&place) {
            ask.wait = None;
            if let End::Refused(leg, Some(until)) = end {
                ask.refused = (!is_remembered).then_some((leg, until));
            }
        }
        Some(end)
    }

    /// The head of `place` leaves. What it was granted goes back. Returns wakers, to be dropped.
    pub(in crate::remote::keyed) fn leave_place(&mut self, place: PlaceId, key: &Key) -> [Option<Waker>; 3] {
        let refused = self.keys.get_mut(key).and_then(|state| state.refused.as_mut());
        let told = refused.and_then(|refused| refused.heads.remove(&place));
        let asked = self.places.remove(&place).and_then(|ask| ask.wait);
        let [waker, news] = asked.map_or([None, None], |number| self.leave(number));
        [told, waker, news]
    }
}

/// The heads that wait for the end of a refusal.
pub(super) type Heads = BTreeMap<PlaceId, Waker>;
