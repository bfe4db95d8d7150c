//! What a level lends to its children: max-min fair shares by weight (Demers, Keshav and Shenker, 1989), with floors.
//!
//! A child *claims* units when it reserves them, and *spends* them as they are metered. What is spent is gone until the period ends; what
//! is claimed and not spent can be lent to another. So the share of a child is where water of a common level stands in it: at least
//! what it has spent, and at most what it has claimed. A child spends within its share. It claims within the share that it would have
//! if it wanted all.
//!
//! Invariant: the units spent by all children are at most the amount, up to the last charge of each running stream: a share leaves the
//! others at least what they have spent.

use crate::level::Counter;

/// The children of one level that are told apart; others share one place.
const MAX_CHILDREN: usize = 1_024;

/// A child on the way from a level down to an account's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// The hash of its key: the same when its level is made anew. 0 for the overflow level.
    pub(crate) id: u64,
    pub(crate) weight: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Child {
    id: u64,
    weight: u32,
    claimed: Counter,
    spent: Counter,
    children: Lent,
}

/// The children of a level, by their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lent(Vec<Child>);

impl Lent {
    /// Where the child is; else the place of those that are not told apart, if there is one.
    fn find(&self, id: u64) -> Option<usize> {
        let place = |id: u64| self.0.binary_search_by_key(&id, |child| child.id).ok();
        place(id).or_else(|| place(0))
    }

    fn find_or_add(&mut self, step: Step, like: &Counter) -> usize {
        let place = match self.0.binary_search_by_key(&step.id, |child| child.id) {
            Ok(place) => return place,
            Err(place) => place,
        };
        if self.0.len() < self.0.capacity().min(MAX_CHILDREN) {
            self.0.insert(place, Child::new(step, like));
            return place;
        }
        // Before it grows, what is over goes.
        self.follow(like);
        self.0.retain(|child| !child.claimed.is_new() || !child.spent.is_new());
        if self.0.len() < MAX_CHILDREN {
            self.0.reserve(self.0.len().max(4));
            return self.find_or_add(step, like);
        }
        match self.find(0) {
            Some(place) => place,
            None => {
                // One more than the others.
                self.0.reserve(1);
                self.0.insert(0, Child::new(Step { id: 0, weight: 1 }, like));
                0
            }
        }
    }

    fn follow(&mut self, like: &Counter) {
        for child in &mut self.0 {
            child.follow(like);
        }
    }

    /// Changes each child on the way. Adds those that are missing, if it `adds`.
    fn walk(&mut self, path: &[Step], like: &Counter, adds: bool, change: &mut impl FnMut(&mut Counter, &mut Counter)) {
        let Some((first, rest)) = path.split_first() else {
            return;
        };
        let place = match adds {
            true => Some(self.find_or_add(*first, like)),
            false => self.find(first.id),
        };
        let Some(child) = place.map(|place| &mut self.0[place]) else {
            return;
        };
        child.follow(like);
        change(&mut child.claimed, &mut child.spent);
        child.children.walk(rest, like, adds, change);
    }

    /// The share of the last child of `path` in `amount`, if it wants all; what it has claimed, and what it has spent.
    fn share(&mut self, path: &[Step], like: &Counter, amount: u64) -> (u64, u64, u64) {
        let Some((first, rest)) = path.split_first() else {
            return (amount, 0, 0);
        };
        self.follow(like);
        let place = self.find(first.id);
        let others = self.0.iter().enumerate().filter(|(at, _)| Some(*at) != place);
        let wants = others.map(|(_, child)| (child.weight, child.spent.total(), child.claimed.total()));
        let share = max_share(amount, first.weight, wants);
        let Some(child) = place.map(|place| &mut self.0[place]) else {
            // Nothing is claimed below either.
            return (share, 0, 0);
        };
        match rest {
            [] => (share, child.claimed.total(), child.spent.total()),
            _ => child.children.share(rest, like, share),
        }
    }
}

impl Child {
    fn new(Step { id, weight }: Step, like: &Counter) -> Self {
        Self {
            id,
            weight,
            claimed: Counter::new(like.shape()),
            spent: Counter::new(like.shape()),
            children: Lent::default(),
        }
    }

    fn follow(&mut self, like: &Counter) {
        self.claimed.follow(like);
        self.spent.follow(like);
    }
}

/// The share of one that wants all, among others of which each has a weight, at least what it has spent, and at most what it claims.
/// Rounded down.
fn max_share(amount: u64, weight: u32, others: impl Iterator<Item = (u32, u64, u64)>) -> u64 {
    // The water level is a fraction. At `units / weight` it reaches what a child has spent, and then what it claims.
    struct Border {
        units: u64,
        weight: u32,
        is_end: bool,
    }
    let (amount, own) = (u128::from(amount), u128::from(weight));
    let (mut fixed, mut weights, mut borders) = (0u128, own, Vec::new());
    for (weight, spent, claimed) in others {
        fixed += u128::from(spent);
        if claimed > spent {
            for (units, is_end) in [(spent, false), (claimed, true)] {
                borders.push(Border { units, weight, is_end });
            }
        }
    }
    if fixed >= amount {
        return 0;
    }
    let scaled = |one: &Border, two: &Border| u128::from(one.units) * u128::from(two.weight);
    borders.sort_unstable_by(|one, two| {
        scaled(one, two)
            .cmp(&scaled(two, one))
            .then(one.is_end.cmp(&two.is_end))
    });
    for border in &borders {
        let (units, weight) = (u128::from(border.units), u128::from(border.weight));
        if fixed * weight + weights * units >= amount * weight {
            break;
        }
        match border.is_end {
            false => (fixed, weights) = (fixed - units, weights + weight),
            true => (fixed, weights) = (fixed + units, weights - weight),
        }
    }
    u64::try_from(own * (amount - fixed) / weights).unwrap_or(u64::MAX)
}

/// A counter of a level, and the way down to the account that changes it. The way is empty where nothing is lent.
pub(crate) struct Cursor<'a> {
    counter: &'a mut Counter,
    path: &'a [Step],
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(crate) fn new(counter: &'a mut Counter, path: &'a [Step]) -> Self {
        Self { counter, path }
    }

    #[inline]
    pub(crate) fn counter(&self) -> &Counter {
        self.counter
    }

    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        !self.path.is_empty()
    }

    #[cold]
    fn walk(&mut self, adds: bool, mut change: impl FnMut(&mut Counter, &mut Counter)) {
        let mut lent = self.counter.lent.take().unwrap_or_default();
        lent.walk(self.path, self.counter, adds, &mut change);
        self.counter.lent = Some(lent);
    }

    #[cold]
    fn share(&mut self, amount: u64) -> (u64, u64, u64) {
        let mut lent = self.counter.lent.take().unwrap_or_default();
        lent.follow(self.counter);
        // What no child has claimed counts before all: of an overflow level, or of the time before a restart.
        let claimed = lent
            .0
            .iter()
            .fold(0u64, |sum, child| sum.saturating_add(child.claimed.total()));
        let own = self.counter.total().saturating_sub(claimed);
        let share = lent.share(self.path, self.counter, amount.saturating_sub(own));
        self.counter.lent = Some(lent);
        share
    }

    /// Whether `units` more can be claimed, although the level has not as many left.
    pub(crate) fn may_claim(&mut self, units: u64, amount: u64) -> bool {
        self.is_lent() && {
            let (share, claimed, _) = self.share(amount);
            claimed.saturating_add(units) <= share
        }
    }

    /// Whether more is spent than may be.
    pub(crate) fn is_over(&mut self, amount: u64) -> bool {
        self.counter.total() > amount
            && (!self.is_lent() || {
                let (share, _, spent) = self.share(amount);
                spent > share
            })
    }

    /// Claims `units` now.
    #[inline]
    pub(crate) fn take(&mut self, units: u64) {
        self.counter.take(units);
        if self.is_lent() && units > 0 {
            self.walk(true, |claimed, _| claimed.take(units));
        }
    }

    /// Claims more of what was claimed at `at`.
    pub(crate) fn take_more(&mut self, at: u64, units: u64) {
        self.counter.take_more(at, units);
        if self.is_lent() && units > 0 {
            self.walk(true, |claimed, _| claimed.take_more(at, units));
        }
    }

    /// Gives back a claim.
    #[inline]
    pub(crate) fn give_back(&mut self, at: u64, units: u64) {
        self.counter.give_back(at, units);
        if self.is_lent() && units > 0 {
            self.walk(false, |claimed, _| claimed.give_back(at, units));
        }
    }

    #[inline]
    pub(crate) fn close(&mut self, at: u64, units: u64) {
        self.counter.close(at, units);
    }

    /// Spends what was claimed at `at`: `after` units, where it was `before`.
    #[inline]
    pub(crate) fn spend(&mut self, at: u64, before: u64, after: u64) {
        if self.is_lent() && before != after {
            self.walk(true, |_, spent| match after > before {
                true => spent.take_more(at, after - before),
                false => spent.give_back(at, before - after),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::holds;
    use crate::level::Shape;
    use crate::period::Span;
    use proptest::prelude::*;

    /// Periods of 100 that begin at multiples of it.
    fn hundreds(now: u64) -> Span {
        let began = now / 100 * 100;
        let ends = began + 100;
        Span { began, ends, due: ends }
    }

    /// A charge as a reference keeps it. Without a path it is of the level itself.
    #[derive(Clone, Debug)]
    struct Charged {
        path: &'static [Step],
        at: u64,
        claimed: u64,
        /// The part of the claim that may be given back.
        open: u64,
        spent: u64,
    }

    const fn step(id: u64, weight: u32) -> Step {
        Step { id, weight }
    }

    const PATHS: [&[Step]; 5] = [
        &[step(1, 1), step(1, 1)],
        &[step(1, 1), step(2, 3)],
        &[step(2, 2), step(1, 1)],
        &[step(3, 5)],
        &[],
    ];

    /// What all charges on the way to the child at `path` have claimed and spent.
    fn sums(all: &[Charged], path: &[u64]) -> (u64, u64) {
        let below = |charged: &&Charged| {
            let ids = charged.path.iter().map(|step| step.id);
            charged.path.len() >= path.len() && ids.zip(path).all(|(id, of)| id == *of)
        };
        let below = all.iter().filter(below);
        below.fold((0, 0), |(claimed, spent), charged| {
            (claimed + charged.claimed, spent + charged.spent)
        })
    }

    /// The largest share with which the parts of all siblings, at one level of water, add up to the amount at most.
    fn share_of(all: &[Charged], path: &[Step], mut amount: u64) -> u64 {
        for depth in 0..path.len() {
            let (before, child) = (&path[..depth], path[depth]);
            let mut siblings: Vec<_> = PATHS.iter().filter(|other| other.len() > depth).collect();
            siblings.retain(|other| other.iter().zip(before).all(|(one, two)| one.id == two.id));
            let mut siblings: Vec<_> = siblings
                .into_iter()
                .map(|other| (other[depth].id, other[depth].weight))
                .collect();
            siblings.sort_unstable();
            siblings.dedup();
            siblings.retain(|(id, _)| *id != child.id);
            let own = u64::from(child.weight);
            let parts = |share: u64| -> u64 {
                let part = |&(id, weight): &(u64, u32)| {
                    let ids: Vec<_> = before.iter().map(|step| step.id).chain([id]).collect();
                    let (claimed, spent) = sums(all, &ids);
                    (u64::from(weight) * share).clamp(spent * own, claimed.max(spent) * own)
                };
                own * share + siblings.iter().map(part).sum::<u64>()
            };
            amount = (0..=amount)
                .rev()
                .find(|&share| parts(share) <= amount * own)
                .unwrap_or(0);
        }
        amount
    }

    /// Given any program of claims, returns and spending by children of two levels, and by the level itself, then each child has the share
    /// of the definition, and what it has claimed and spent is the sum of its charges in this period.
    #[test]
    fn a_tree_of_lent_shares_is_the_list_of_its_charges() {
        holds([2, 2], |inputs| {
            let amount = inputs.number(40, 3);
            let mut counter = Counter::new(Shape::Calendar);
            let (mut now, mut all) = (0, Vec::<Charged>::new());
            while inputs.goes_on() {
                now += inputs.one_of(&[0, 30, 100]);
                counter.advance(now, hundreds);
                all.retain(|charged| charged.at / 100 == now / 100);
                let (what, which) = (inputs.below(5), inputs.below(all.len().max(1) as u64) as usize);
                let units = inputs.number(12, 2);
                match (what, all.get_mut(which)) {
                    (1, Some(charged)) => {
                        let units = units.min(charged.open);
                        Cursor::new(&mut counter, charged.path).give_back(charged.at, units);
                        charged.claimed -= units;
                        charged.open -= units;
                    }
                    (2, Some(charged)) => {
                        Cursor::new(&mut counter, charged.path).take_more(charged.at, units);
                        charged.claimed += units;
                        charged.open += units;
                    }
                    (4, Some(charged)) => {
                        Cursor::new(&mut counter, charged.path).close(charged.at, charged.open);
                        charged.open = 0;
                    }
                    (3, Some(charged)) if !charged.path.is_empty() => {
                        Cursor::new(&mut counter, charged.path).spend(charged.at, charged.spent, units);
                        charged.spent = units;
                    }
                    _ => {
                        let path = inputs.one_of(&PATHS);
                        Cursor::new(&mut counter, path).take(units);
                        all.push(Charged {
                            path,
                            at: now,
                            claimed: units,
                            open: units,
                            spent: 0,
                        });
                    }
                }
                let (own, total) = (all.iter().filter(|charged| charged.path.is_empty()), sums(&all, &[]).0);
                let lends = amount.saturating_sub(own.map(|charged| charged.claimed).sum());
                assert_eq!(counter.total(), total);
                assert_eq!(counter.open(), all.iter().map(|charged| charged.open).sum::<u64>());
                for path in PATHS.into_iter().filter(|path| !path.is_empty()) {
                    let ids: Vec<_> = path.iter().map(|step| step.id).collect();
                    let ((claimed, spent), share) = (sums(&all, &ids), share_of(&all, path, lends));
                    let mut cursor = Cursor::new(&mut counter, path);
                    assert!(cursor.is_lent());
                    let room = share.saturating_sub(claimed);
                    assert_eq!(cursor.may_claim(room, amount), claimed <= share, "{path:?}");
                    assert!(!cursor.may_claim(room + 1, amount), "{path:?} has {share}");
                    assert_eq!(cursor.is_over(amount), total > amount && spent > share, "{path:?}");
                }
                let mut level = Cursor::new(&mut counter, &[]);
                assert!(!level.is_lent() && !level.may_claim(0, amount));
                assert_eq!(level.is_over(amount), total > amount);
            }
        });
    }

    /// Given more children than are told apart, then each of the first has its own claim, and the others share one place. The places of
    /// those that gave all back, or whose period is over, are used again.
    #[test]
    fn a_crowd_of_children_is_told_apart_as_far_as_there_is_room() {
        holds([1, 1], |inputs| {
            let (gone, beyond) = (inputs.number(MAX_CHILDREN as u64, 2), inputs.number(9, 2));
            let all = inputs.one_of(&[MAX_CHILDREN as u64, 6]) + beyond;
            let apart = all.min(MAX_CHILDREN as u64);
            let mut counter = Counter::new(Shape::Calendar);
            for now in [0, 100] {
                counter.advance(now, hundreds);
                let first = now * 1_000;
                for id in 1..=gone {
                    let path = [step((1 << 40) + first + id, 1)];
                    let mut cursor = Cursor::new(&mut counter, &path);
                    cursor.take(3);
                    cursor.give_back(now, 3);
                }
                for id in 1..=all {
                    Cursor::new(&mut counter, &[step(first + id, 1)]).take(id);
                }
                let lent = counter.lent.as_ref().expect("it lends");
                let shared = (apart + 1..=all).sum();
                for id in 1..=all {
                    let place = lent.find(first + id).expect("it has claimed");
                    let expected = if id <= apart { id } else { shared };
                    assert_eq!(lent.0[place].claimed.total(), expected, "beside {gone} that are gone");
                }
                assert!(lent.0.len() <= MAX_CHILDREN + 1, "{}", lent.0.len());
            }
        });
    }

    #[test]
    fn others_keep_what_they_have_spent_and_get_no_more_than_they_claim() {
        /// Weight, spent, claimed.
        type Others = &'static [(u32, u64, u64)];
        let rows: [(u64, u32, Others, u64); 7] = [
            (100, 1, &[], 100),
            (100, 1, &[(1, 0, 100)], 50),
            (100, 3, &[(1, 0, 100)], 75),
            (100, 1, &[(1, 0, 20)], 80),
            (100, 1, &[(1, 70, 100)], 30),
            (100, 1, &[(1, 120, 120)], 0),
            (100, 1, &[(1, 0, 10), (2, 0, 100), (1, 40, 40)], 16),
        ];
        for (amount, weight, others, share) in rows {
            assert_eq!(max_share(amount, weight, others.iter().copied()), share, "{others:?}");
        }
        let most = u64::MAX;
        assert_eq!(
            max_share(most, u32::MAX, [(u32::MAX, 0, most), (1, most / 4, most)].into_iter()),
            6_917_529_027_641_081_856
        );
    }

    proptest! {
        /// The share is that of the definition: the water level at which all parts add up to the amount, by a search in
        /// fractions of 2^-40.
        #[test]
        fn a_share_is_where_the_water_stands(
            amount in 0u64..1_000, weight in 1u32..9, others in prop::collection::vec((1u32..9, 0u64..300, 0u64..300), 0..12),
        ) {
            let others = others.into_iter().map(|(weight, one, two)| (weight, one.min(two), one.max(two)));
            let others: Vec<_> = others.collect();
            let parts = |level: u128| -> u128 {
                let part = |&(weight, spent, claimed): &(u32, u64, u64)| {
                    (u128::from(weight) * level).clamp(u128::from(spent) << 40, u128::from(claimed) << 40)
                };
                u128::from(weight) * level + others.iter().map(part).sum::<u128>()
            };
            let (mut low, mut high) = (0u128, 1 << 60);
            while high - low > 1 {
                let middle = u128::midpoint(low, high);
                if parts(middle) <= u128::from(amount) << 40 { low = middle } else { high = middle }
            }
            let expected = if parts(0) > u128::from(amount) << 40 { 0 } else { u128::from(weight) * low };
            let share = u128::from(max_share(amount, weight, others.iter().copied())) << 40;
            prop_assert!(share <= expected + 16 && expected < share + (1 << 40) + 16, "{} of {}", share >> 40, expected >> 40);
        }
    }
}
