//! Learned estimates: what a request of a class is likely to cost, from what such requests have cost.
//!
//! A reservation by an upper bound such as `max_tokens` keeps units from others that it then gives back. A reservation by a quantile of
//! the true costs keeps fewer, and is exceeded as rarely as the quantile says.
//!
//! `docs/budgets.md` of the repository has two real traces through a budget, by what is reserved.
//!
//! # Method
//! - A class has a histogram of 16 buckets for each power of two, as [HdrHistogram] has. The answer is the upper end of a bucket: at
//!   least the exact quantile, and above it by less than 1 in 16.
//! - An observation loses weight with each later one of its class, by *forward decay* (Cormode, Shkapenyuk, Srivastava and Xu,
//!   ICDE 2009): the newer ones weigh more, so that no old one has to be touched.
//! - The next cost counts as one more observation, above all others. This is the quantile of *conformal prediction* (Barber, Candès,
//!   Ramdas and Tibshirani, Annals of Statistics 51, 2023): if costs are exchangeable, the next one exceeds it with at most the
//!   stated probability, however few there have been. With too few there is no such quantile.
//! - With too few, the largest cost so far is extrapolated, as the tail of a distribution whose variance is finite: of `n` costs it is
//!   multiplied by the root of `needed / n`.
//!
//! [HdrHistogram]: https://hdrhistogram.org

use hashbrown::HashTable;
use parking_lot::Mutex;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Estimates costs by an online quantile for each class of requests.
///
/// A class is any value that can be hashed, such as a model and a tenant. Only its hash is kept: classes of one 64-bit hash share their
/// observations.
///
/// A class is *cold* until it has about `1 / (1 - quantile)` observations. A cold class has the quantile of all requests. Until there are
/// as many of all, it has the largest cost so far, times the root of the part of the observations that is missing. Before the first
/// one it has the upper limit of the caller.
///
/// # Memory
/// 2.5 kB for each class, and at most [`max_classes`](EstimatesBuilder::max_classes) of them. At the bound a new class takes the place of
/// one that has been *idle*: it was not among the last `100 * max_classes` observations. Without one, it has the quantile of all
/// requests, and takes no memory. So a flood of classes evicts none that is observed now and then.
///
/// # Performance
/// No allocation for a known class. An estimate takes about 30 ns, and an observation 40 ns where no other thread observes: the
/// histogram of all requests is behind one lock.
///
/// ```
/// # use tollgate_budget::Estimates;
/// let estimates = Estimates::builder(0.9).build()?;
/// let class = ("large-model", "tenant-7");
/// // Nothing is known: the upper limit of the request.
/// assert_eq!(estimates.estimate(&class, 4_096), 4_096);
/// for cost in 1..=100 {
///     estimates.observe(&class, cost);
/// }
/// // Nine of ten cost at most that, as a bucket of the histogram ends there.
/// assert_eq!(estimates.estimate(&class, 4_096), 95);
/// // Never more than the upper limit.
/// assert_eq!(estimates.estimate(&class, 50), 50);
/// # Ok::<(), tollgate_budget::EstimatesError>(())
/// ```
pub struct Estimates {
    quantile: Quantile,
    max_classes: usize,
    /// Classes that have a histogram.
    classes: AtomicUsize,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    all: Mutex<All>,
}

const SHARDS: usize = 16;

/// A class is idle after this many observations of all, for each class that has a place.
const IDLE: u64 = 100;

/// Classes that a new one looks at for an idle one.
const LOOKS: usize = 16;

/// The costs of all requests.
struct All {
    histogram: Histogram,
    observed: u64,
    /// The bucket of the largest.
    largest: usize,
}

impl All {
    fn new() -> Self {
        let histogram = Histogram::new();
        Self {
            histogram,
            observed: 0,
            largest: 0,
        }
    }

    fn observe(&mut self, cost: u64, quantile: &Quantile) {
        self.observed += 1;
        self.largest = self.largest.max(bucket(cost));
        self.histogram.observe(cost, quantile);
    }

    /// What takes the place of the quantile while there are too few observations; `None` without any, or where it has no upper end.
    fn extrapolated(&self, quantile: &Quantile) -> Option<u64> {
        if self.observed == 0 || self.largest == LAST {
            return None;
        }
        let missing = 1.0 / ((1.0 - quantile.part) * self.observed as f64);
        Some((upper_end(self.largest) as f64 * missing.max(1.0).sqrt()) as u64)
    }
}

/// Some of the classes. A hand goes round to find idle ones.
#[derive(Default)]
struct Shard {
    classes: HashTable<Class>,
    hand: usize,
}

struct Class {
    key: u64,
    /// The number of its last observation, of all.
    last: u64,
    histogram: Histogram,
}

impl Shard {
    fn get(&self, key: u64) -> Option<&Class> {
        self.classes.find(key, |class| class.key == key)
    }

    fn insert(&mut self, class: Class) {
        self.classes.insert_unique(class.key, class, |class| class.key);
    }

    fn remove(&mut self, key: u64) -> bool {
        let found = self.classes.find_entry(key, |class| class.key == key);
        found.map(|entry| drop(entry.remove())).is_ok()
    }

    /// Removes a class that was last observed before `oldest`, if the hand finds one.
    fn evict(&mut self, oldest: u64) -> bool {
        let mut looks = LOOKS;
        for _ in 0..4 * LOOKS {
            self.hand = (self.hand + 1) % self.classes.num_buckets().max(1);
            let Ok(entry) = self.classes.get_bucket_entry(self.hand) else {
                continue;
            };
            if entry.get().last < oldest {
                entry.remove();
                return true;
            }
            looks -= 1;
            if looks == 0 {
                break;
            }
        }
        false
    }
}

impl Estimates {
    /// Estimates that a part `quantile` of the requests does not exceed: 0.99 for all but one of a hundred.
    pub fn builder(quantile: f64) -> EstimatesBuilder {
        EstimatesBuilder {
            quantile,
            memory: None,
            max_classes: 1_024,
        }
    }

    /// The units to reserve for a request of `class`, at most `limit`.
    pub fn estimate(&self, class: &(impl Hash + ?Sized), limit: u64) -> u64 {
        let key = self.hasher.hash_one(class);
        let own = self
            .shard(key)
            .lock()
            .get(key)
            .and_then(|class| class.histogram.estimate());
        let learned = own.or_else(|| {
            let all = self.all.lock();
            all.histogram.estimate().or_else(|| all.extrapolated(&self.quantile))
        });
        learned.map_or(limit, |learned| learned.min(limit))
    }

    /// A request of `class` has cost `actual`.
    pub fn observe(&self, class: &(impl Hash + ?Sized), actual: u64) {
        let number = {
            let mut all = self.all.lock();
            all.observe(actual, &self.quantile);
            all.observed
        };
        let key = self.hasher.hash_one(class);
        let mut shard = self.shard(key).lock();
        if let Some(class) = shard.classes.find_mut(key, |class| class.key == key) {
            class.last = number;
            return class.histogram.observe(actual, &self.quantile);
        }
        let idle = self.max_classes as u64 * IDLE;
        if self.take_place() || shard.evict(number.saturating_sub(idle)) {
            let mut histogram = Histogram::new();
            histogram.observe(actual, &self.quantile);
            let last = number;
            shard.insert(Class { key, last, histogram });
        }
    }

    /// Forgets `class`, whose place another can have. True when it had a histogram.
    pub fn remove(&self, class: &(impl Hash + ?Sized)) -> bool {
        let key = self.hasher.hash_one(class);
        let removed = self.shard(key).lock().remove(key);
        if removed {
            // Relaxed: see `take_place`.
            self.classes.fetch_sub(1, Ordering::Relaxed);
        }
        removed
    }

    /// The number of classes that have a histogram of their own.
    pub fn classes(&self) -> usize {
        // Relaxed: a count, by which nothing is published.
        self.classes.load(Ordering::Relaxed)
    }

    fn shard(&self, key: u64) -> &Mutex<Shard> {
        &self.shards[key as usize % SHARDS]
    }

    /// Takes one of the places for classes, if there is one left.
    fn take_place(&self) -> bool {
        let next = |taken| (taken < self.max_classes).then_some(taken + 1);
        // Relaxed: the count alone is bounded by it. A histogram is published by the lock of its shard.
        let taken = self.classes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.is_ok()
    }
}

impl fmt::Debug for Estimates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estimates")
            .field("quantile", &self.quantile.part)
            .field("classes", &self.classes())
            .finish_non_exhaustive()
    }
}

/// The settings of [`Estimates`]. Made by [`Estimates::builder`].
///
/// ```
/// # use tollgate_budget::Estimates;
/// let estimates = Estimates::builder(0.95).memory(1_000.0).max_classes(100).build()?;
/// (0..100).for_each(|_| estimates.observe("chat", 200));
/// assert!(estimates.estimate("chat", 4_096) < 4_096);
/// assert!(estimates.remove("chat"));
/// # Ok::<(), tollgate_budget::EstimatesError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "it makes nothing before `build`"]
pub struct EstimatesBuilder {
    quantile: f64,
    memory: Option<f64>,
    max_classes: usize,
}

impl EstimatesBuilder {
    /// The mean age of what is remembered, in observations of the same class: `2 / (1 - quantile)` to 10^9. An observation weighs
    /// `(1 - 1 / memory)` to the power of its age. By default it is `10 / (1 - quantile)`, so 1,000 for a quantile of 0.99.
    ///
    /// A longer memory is steadier, and follows a change more slowly: after a change, an estimate has no part of what was before once
    /// about `5 * memory` observations have been made.
    pub fn memory(mut self, observations: f64) -> Self {
        self.memory = Some(observations);
        self
    }

    /// The number of classes that have a histogram of their own: 0 to 2^32 - 1, by default 1,024.
    pub fn max_classes(mut self, classes: u32) -> Self {
        self.max_classes = classes as usize;
        self
    }

    /// Makes the estimates, without any observation.
    ///
    /// # Errors
    /// The quantile is not between 0.01 and 0.9999, or the memory is out of its bounds.
    ///
    /// ```
    /// # use tollgate_budget::Estimates;
    /// let error = Estimates::builder(0.99).memory(50.0).build().unwrap_err();
    /// assert_eq!(error.to_string(), "memory: 50 was given, and 200 to 1000000000 is allowed");
    /// ```
    pub fn build(self) -> Result<Estimates, EstimatesError> {
        let part = self.quantile;
        within("quantile", part, 0.01, 0.9999)?;
        let memory = self.memory.unwrap_or(10.0 / (1.0 - part)).round();
        within("memory", memory, (2.0 / (1.0 - part)).round(), 1e9)?;
        Ok(Estimates {
            quantile: Quantile {
                part,
                growth: memory / (memory - 1.0),
            },
            max_classes: self.max_classes,
            classes: AtomicUsize::new(0),
            hasher: RandomState::new(),
            shards: Default::default(),
            all: Mutex::new(All::new()),
        })
    }
}

fn within(setting: &'static str, given: f64, least: f64, most: f64) -> Result<(), EstimatesError> {
    match (least..=most).contains(&given) {
        true => Ok(()),
        false => Err(EstimatesError {
            setting,
            given,
            least,
            most,
        }),
    }
}

/// A setting of [`Estimates`] that is out of bounds.
///
/// ```
/// # use tollgate_budget::Estimates;
/// let error = Estimates::builder(1.5).build().unwrap_err();
/// assert_eq!((error.setting, error.given), ("quantile", 1.5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct EstimatesError {
    /// The setting.
    pub setting: &'static str,
    /// The given number.
    pub given: f64,
    /// The least allowed.
    pub least: f64,
    /// The most allowed.
    pub most: f64,
}

impl fmt::Display for EstimatesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            setting,
            given,
            least,
            most,
        } = self;
        write!(f, "{setting}: {given} was given, and {least} to {most} is allowed")
    }
}

impl std::error::Error for EstimatesError {}

/// The quantile that is kept, and how fast the weight of observations grows.
struct Quantile {
    part: f64,
    /// The weight of an observation, divided by that of the one before it. Above 1.
    growth: f64,
}

/// Weighted costs in buckets, and the bucket of the quantile.
///
/// # Invariant
/// - `total` is the sum of `weights`, and `above` that of the buckets behind `at`, both up to rounding.
/// - `at` is the first bucket behind which at most the share of the quantile lies, or [`LAST`].
struct Histogram {
    weights: Box<[f32; BUCKETS]>,
    /// The weight of the next observation.
    next: f64,
    total: f64,
    above: f64,
    at: usize,
}

/// Costs below this have a bucket each, and each power of two above it this many.
const STEPS: u64 = 16;
/// Costs from `2^WIDEST` on share a bucket without an upper end.
const WIDEST: u32 = 40;
const LAST: usize = (STEPS * (WIDEST as u64 - 3)) as usize;
const BUCKETS: usize = LAST + 1;

fn bucket(cost: u64) -> usize {
    let power = cost.max(STEPS).ilog2();
    if power >= WIDEST {
        return LAST;
    }
    let shift = power - STEPS.ilog2();
    (u64::from(shift) * STEPS + (cost >> shift)) as usize
}

/// The largest cost in a bucket before [`LAST`].
fn upper_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / STEPS).saturating_sub(1);
    ((bucket - shift * STEPS + 1) << shift) - 1
}

impl Histogram {
    /// The weight at which all weights are scaled down.
    const HEAVIEST: f64 = 1e12;
    /// The part of all weights that is taken for a rounding error.
    const ROUNDING: f64 = 1e-9;

    fn new() -> Self {
        Self {
            weights: Box::new([0.0; BUCKETS]),
            next: 1.0,
            total: 0.0,
            above: 0.0,
            at: LAST,
        }
    }

    /// The quantile; `None` when there are too few observations, or its bucket has no upper end.
    fn estimate(&self) -> Option<u64> {
        (self.at < LAST).then(|| upper_end(self.at))
    }

    fn observe(&mut self, cost: u64, quantile: &Quantile) {
        let bucket = bucket(cost);
        let weight = &mut self.weights[bucket];
        let before = *weight;
        *weight += self.next as f32;
        // What has been added after rounding, so that the sums are those of the buckets.
        let added = f64::from(*weight) - f64::from(before);
        self.total += added;
        if bucket > self.at {
            self.above += added;
        }
        self.next *= quantile.growth;
        if self.next > Self::HEAVIEST {
            self.scale_down();
        }
        self.move_to(quantile);
    }

    /// Moves to the bucket of the quantile: a few steps, since one observation changes little.
    fn move_to(&mut self, quantile: &Quantile) {
        // The next cost counts as one that is above all others.
        let beyond = (1.0 - quantile.part) * (self.total + self.next) - self.next;
        let beyond = beyond + self.total * Self::ROUNDING;
        while self.above > beyond && self.at < LAST {
            self.at += 1;
            self.above -= f64::from(self.weights[self.at]);
        }
        while self.at > 0 && self.above + f64::from(self.weights[self.at]) <= beyond {
            self.above += f64::from(self.weights[self.at]);
            self.at -= 1;
        }
    }

    /// Divides all weights by that of the next observation. The sums are made anew, without the rounding errors so far.
    #[cold]
    fn scale_down(&mut self) {
        for weight in self.weights.iter_mut() {
            *weight = (f64::from(*weight) / self.next) as f32;
        }
        let sum = |weights: &[f32]| weights.iter().copied().map(f64::from).sum();
        self.next = 1.0;
        self.total = sum(&self.weights[..]);
        self.above = sum(&self.weights[self.at + 1..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The quantile by its definition: of all costs with their weights, and one more above all.
    fn exact(costs: &[u64], part: f64, memory: f64) -> Option<u64> {
        let weight = |age: usize| (1.0 - 1.0 / memory).powi(age as i32);
        let mut weighted: Vec<_> = costs
            .iter()
            .rev()
            .enumerate()
            .map(|(age, &cost)| (cost, weight(age + 1)))
            .collect();
        weighted.sort_by_key(|&(cost, _)| cost);
        let total: f64 = 1.0 + weighted.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut below = 0.0;
        weighted.into_iter().find_map(|(cost, weight)| {
            below += weight;
            (below >= part * total).then_some(cost)
        })
    }

    fn of(part: f64, memory: f64) -> Estimates {
        Estimates::builder(part).memory(memory).build().unwrap()
    }

    #[test]
    fn each_cost_is_in_a_bucket_that_ends_less_than_a_sixteenth_above_it() {
        let around = (0..WIDEST).flat_map(|power| [0, 1, 2, 3].map(|more| (1_u64 << power) - 1 + more));
        for cost in (0..5_000).chain(around).filter(|&cost| cost < 1 << WIDEST) {
            let end = upper_end(bucket(cost));
            assert!(
                cost <= end && (end - cost) * 16 <= cost,
                "{cost} in a bucket up to {end}"
            );
            assert_eq!(bucket(end), bucket(cost));
            assert_eq!(bucket(end + 1), bucket(cost) + 1, "after {end}");
        }
        assert_eq!([1 << WIDEST, u64::MAX].map(bucket), [LAST; 2]);
    }

    /// Given too few observations of a class, then it has the quantile of all. With too few of all it has the largest so far, and more
    /// the fewer there are; and before that the limit.
    #[test]
    fn a_cold_class_starts_from_all_requests_and_from_the_largest_of_few() {
        let estimates = of(0.9, 100.0);
        // 8 times the root of 10 / n.
        for expected in [4_096, 25, 17, 14, 12, 11, 10, 9, 8] {
            assert_eq!(estimates.estimate("old", 4_096), expected);
            estimates.observe("old", 8);
        }
        for _ in 0..20 {
            estimates.observe("old", 8);
        }
        assert_eq!(estimates.estimate("old", 4_096), 8);
        assert_eq!(estimates.estimate("new", 4_096), 8);
        estimates.observe("new", 700);
        assert_eq!(estimates.estimate("new", 4_096), 8);
        for _ in 0..12 {
            estimates.observe("new", 700);
        }
        assert_eq!(estimates.estimate("new", 4_096), 703);
        assert_eq!(estimates.estimate("new", 64), 64);
        assert_eq!(estimates.estimate("old", 4_096), 8);
    }

    /// Given costs that grow or shrink a hundredfold, then the estimate has followed after five times the memory.
    #[test]
    fn a_change_of_behaviour_is_followed() {
        let estimates = of(0.95, 200.0);
        for (cost, expected) in [(100, 103), (10_000, 10_239), (100, 103)] {
            for _ in 0..1_000 {
                estimates.observe("class", cost);
            }
            assert_eq!(estimates.estimate("class", u64::MAX), expected);
        }
    }

    fn kept(estimates: &Estimates) -> usize {
        estimates.shards.iter().map(|shard| shard.lock().classes.len()).sum()
    }

    /// Given a million classes, then as many as are allowed have a histogram, and one that is observed now and then keeps its own.
    #[test]
    fn a_flood_of_classes_keeps_the_bound_and_evicts_none_that_is_in_use() {
        let estimates = Estimates::builder(0.5).max_classes(100).build().unwrap();
        for class in 1..1_000_000_u32 {
            if class % 5_000 == 1 {
                estimates.observe(&0, 700);
            }
            estimates.observe(&class, 1);
        }
        assert_eq!((estimates.classes(), kept(&estimates)), (100, 100));
        assert_eq!(estimates.estimate(&0, 4_096), 703);
        // Classes of the flood that came first are idle, and others have their places.
        assert!(!estimates.remove(&1) && !estimates.remove(&2));
        assert!(estimates.remove(&0) && !estimates.remove(&0));
        estimates.observe(&0, 1);
        assert_eq!((estimates.classes(), kept(&estimates)), (100, 100));
        assert!(estimates.remove(&0));
    }

    #[test]
    fn an_idle_class_makes_room_for_a_new_one_and_one_in_use_does_not() {
        let estimates = Estimates::builder(0.5).max_classes(2).build().unwrap();
        let [idle, used] = [1, 2];
        estimates.observe(&idle, 1);
        for _ in 0..201 {
            estimates.observe(&used, 1);
        }
        // Each place is of one shard: some of these are of that of the idle class.
        for new in 100..200 {
            estimates.observe(&new, 1);
            estimates.observe(&used, 1);
        }
        assert_eq!((estimates.classes(), kept(&estimates)), (2, 2));
        assert!(!estimates.remove(&idle) && estimates.remove(&used));
    }

    #[test]
    fn a_known_class_allocates_nothing() {
        let estimates = of(0.9, 50.0);
        estimates.observe(&("model", "tenant"), 1);
        let taken = allocation_counter::measure(|| {
            for cost in 0..10_000 {
                estimates.observe(&("model", "tenant"), cost << (cost % 50));
                estimates.estimate(&("model", "tenant"), 4_096);
            }
        });
        assert_eq!(taken.count_total, 0);
    }

    #[test]
    fn a_class_takes_the_stated_memory() {
        let estimates = Estimates::builder(0.9).build().unwrap();
        let taken = allocation_counter::measure(|| (0..1_024_u32).for_each(|class| estimates.observe(&class, 1)));
        assert!(
            taken.bytes_current / 1_024 <= 2_500,
            "{} bytes",
            taken.bytes_current / 1_024
        );
    }

    #[test]
    fn settings_out_of_bounds_are_refused() {
        let refused = |builder: EstimatesBuilder| builder.build().unwrap_err().setting;
        for quantile in [0.0, 1.0, -0.5, 1.5, f64::NAN, f64::INFINITY] {
            assert_eq!(refused(Estimates::builder(quantile)), "quantile");
        }
        for memory in [0.0, 19.0, 2e9, f64::NAN] {
            assert_eq!(refused(Estimates::builder(0.9).memory(memory)), "memory");
        }
        assert!(Estimates::builder(0.9).memory(20.0).build().is_ok());
    }

    /// Costs of several sizes, as requests have them.
    fn costs() -> impl Strategy<Value = Vec<u64>> {
        let cost = (0..40_u32, any::<u64>()).prop_map(|(power, bits)| bits & ((1 << power) - 1));
        let short = prop::collection::vec(cost.clone(), 0..100);
        prop_oneof![short, prop::collection::vec(cost, 1_000..3_000)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// The answer is at least the exact quantile, and less than a sixteenth above it; up to a part of 10^-6 of the
        /// quantile, for sums that are rounded.
        #[test]
        fn the_estimate_is_the_exact_quantile_up_to_a_sixteenth(
            costs in costs(), part in 0.05..0.99_f64, spare in 1.0..20.0_f64,
        ) {
            let memory = (spare * 2.0 / (1.0 - part)).ceil();
            let estimates = of(part, memory);
            costs.iter().for_each(|&cost| estimates.observe("class", cost));
            let answer = estimates.estimate("class", u64::MAX);
            // With too few it is extrapolated: from the largest to any more.
            let largest = costs.iter().copied().max().unwrap_or(u64::MAX);
            let least = exact(&costs, part - 1e-6, memory).unwrap_or(largest);
            let most = exact(&costs, part + 1e-6, memory).unwrap_or(u64::MAX);
            prop_assert!(answer >= least, "{} is below {}", answer, least);
            prop_assert!(answer <= most.saturating_add(most / 16), "{} is above {}", answer, most);
        }

        /// Of exchangeable costs the next one exceeds the estimate no more often than the quantile says.
        #[test]
        fn the_next_cost_exceeds_the_estimate_as_rarely_as_stated(seed in any::<u64>()) {
            let (estimates, mut draw, mut exceeded) = (of(0.9, 500.0), seed | 1, 0);
            for _ in 0..5_000 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let cost = 1 << (draw >> 59);
                exceeded += u32::from(cost > estimates.estimate("class", u64::MAX));
                estimates.observe("class", cost);
            }
            // 500 are expected, with a deviation of 21.
            prop_assert!(exceeded <= 600, "{} of 5000", exceeded);
        }
    }
}
