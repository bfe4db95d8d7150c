//! A rule of any kind behind one type.

use super::{PeakKey, Rule};
use crate::core::boxed::Erased;
use crate::core::limiter::Limiter;
use crate::core::ticket::Ticket;
use crate::policy::spec::{PeakStep, SpecError};
use crate::rate::Inherit;
use crate::time::Clock;
use std::any::{Any, TypeId};
use std::fmt;
use std::sync::Arc;

/// A kind of leg and its numbers: a [`Rule`] of any type.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, SlidingLogRule};
/// # use std::time::Duration;
/// let rule = LegRule::from(SlidingLogRule {
///     limit: 10,
///     window: Duration::from_secs(60),
///     entries: Some(5),
/// });
/// assert_eq!((rule.kind(), rule.to_string().as_str()), ("sliding-log", "10 per 60s in 5 entries"));
/// assert_eq!(rule.get::<SlidingLogRule>().unwrap().limit, 10);
/// assert_ne!(rule, LegRule::sliding_log(10, Duration::from_secs(60)));
/// ```
#[derive(Clone)]
pub struct LegRule(pub(in crate::policy) Arc<dyn AnyRule>);

impl LegRule {
    /// The name of its kind, as in a file.
    pub fn kind(&self) -> &'static str {
        self.0.kind()
    }

    /// The rule, if it is of this type.
    pub fn get<R: Rule>(&self) -> Option<&R> {
        (&*self.0 as &dyn Any).downcast_ref()
    }

    /// True when units are held until the work ends: see [`Rule::HOLDS`].
    pub fn holds(&self) -> bool {
        self.0.holds()
    }

    /// The units that it can give at most: see [`Rule::most`].
    pub fn most(&self) -> Option<u64> {
        self.0.most()
    }

    /// The units per second, of a rate.
    pub fn per_second(&self) -> Option<f64> {
        self.0.per_second()
    }

    /// The number that a row of a peak table changes.
    pub fn peak(&self) -> Option<PeakKey> {
        self.0.peak()
    }

    /// This rule with the numbers of a row of a peak table.
    #[must_use]
    pub fn at(&self, step: &PeakStep) -> Self {
        self.0.at(step)
    }
}

impl<R: Rule> From<R> for LegRule {
    fn from(rule: R) -> Self {
        Self(Arc::new(rule))
    }
}

impl fmt::Debug for LegRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The numbers.
impl fmt::Display for LegRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text())
    }
}

impl PartialEq for LegRule {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_equal(other)
    }
}

/// A limiter of any type, whose [`Rule`] finds its type again.
pub(in crate::policy) trait LegLimiter: Erased + Any {}

impl<L: Limiter + 'static> LegLimiter for L {}

/// The object-safe form of a [`Rule`].
pub(in crate::policy) trait AnyRule: Any + fmt::Debug + Send + Sync {
    /// The type, by which kinds of one name are told apart.
    fn id(&self) -> TypeId;
    fn kind(&self) -> &'static str;
    fn holds(&self) -> bool;
    fn peak(&self) -> Option<PeakKey>;
    fn crossing(&self) -> Inherit;
    /// The words of the limiter's ticket.
    fn words(&self) -> usize;
    fn is_equal(&self, other: &LegRule) -> bool;
    fn build(&self, clock: &Clock) -> Result<Box<dyn LegLimiter>, SpecError>;
    fn check(&self) -> Result<(), SpecError>;
    fn text(&self) -> String;
    fn fixed(&self) -> String;
    fn change(&self, limiter: &dyn Any, to: &LegRule, inherit: Inherit);
    fn tighter(&self, other: &LegRule) -> LegRule;
    fn reset(&self, limiter: &dyn Any);
    fn at(&self, step: &PeakStep) -> LegRule;
    fn may_reach(&self, limiter: &dyn Any, most: u64);
    fn available(&self, limiter: &dyn Any) -> Option<u64>;
    fn most(&self) -> Option<u64>;
    fn capacity(&self, limiter: &dyn Any) -> Option<u64>;
    fn per_second(&self) -> Option<f64>;
    fn is_unlimited(&self) -> bool;
}

impl<R: Rule> AnyRule for R {
    fn id(&self) -> TypeId {
        TypeId::of::<R>()
    }
    fn kind(&self) -> &'static str {
        R::KIND
    }
    fn holds(&self) -> bool {
        R::HOLDS
    }
    fn peak(&self) -> Option<PeakKey> {
        R::PEAK
    }
    fn crossing(&self) -> Inherit {
        R::CROSSING
    }
    fn words(&self) -> usize {
        <R::Limiter as Limiter>::Ticket::WORDS
    }
    fn is_equal(&self, other: &LegRule) -> bool {
        other.get::<R>() == Some(self)
    }
    fn build(&self, clock: &Clock) -> Result<Box<dyn LegLimiter>, SpecError> {
        Ok(Box::new(Rule::build(self, clock)?))
    }
    fn check(&self) -> Result<(), SpecError> {
        Rule::check(self)
    }
    fn text(&self) -> String {
        Rule::text(self)
    }
    fn fixed(&self) -> String {
        Rule::fixed(self)
    }
    fn change(&self, limiter: &dyn Any, to: &LegRule, inherit: Inherit) {
        if let Some(to) = to.get() {
            Rule::change(self, of_leg::<R>(limiter), to, inherit);
        }
    }
    fn tighter(&self, other: &LegRule) -> LegRule {
        match other.get() {
            Some(other) => Rule::tighter(self, other).into(),
            None => other.clone(),
        }
    }
    fn reset(&self, limiter: &dyn Any) {
        R::reset(of_leg::<R>(limiter));
    }
    fn at(&self, step: &PeakStep) -> LegRule {
        Rule::at(self, step).into()
    }
    fn may_reach(&self, limiter: &dyn Any, most: u64) {
        R::may_reach(of_leg::<R>(limiter), most);
    }
    fn available(&self, limiter: &dyn Any) -> Option<u64> {
        R::available(of_leg::<R>(limiter))
    }
    fn most(&self) -> Option<u64> {
        Rule::most(self)
    }
    fn capacity(&self, limiter: &dyn Any) -> Option<u64> {
        Rule::capacity(self, of_leg::<R>(limiter))
    }
    fn per_second(&self) -> Option<f64> {
        Rule::per_second(self)
    }
    fn is_unlimited(&self) -> bool {
        Rule::is_unlimited(self)
    }
}

/// The limiter of a leg, whose type its identity keeps.
fn of_leg<R: Rule>(limiter: &dyn Any) -> &R::Limiter {
    match limiter.downcast_ref() {
        Some(limiter) => limiter,
        None => unreachable!("a leg keeps the type of its rule"),
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::spec::LegRule;
    use std::time::Duration;

    fn bucket(quota: &str) -> LegRule {
        LegRule::token_bucket(quota.parse().unwrap())
    }

    #[test]
    fn each_number_is_the_tighter_one() {
        let rows = [
            ("100/s burst 5", "10/s burst 50", "10/s burst 5"),
            ("60/min burst 9", "2/s burst 10", "60/min burst 9"),
            ("unlimited", "3/s", "3/s"),
            ("3/s", "unlimited", "3/s"),
            ("zero", "3/s", "zero"),
            ("zero burst 5", "3/s burst 2", "zero burst 2"),
            ("10/s by interval", "20/s burst 4", "10/s burst 4 by interval"),
        ];
        for (a, b, both) in rows {
            assert_eq!(bucket(a).0.tighter(&bucket(b)), bucket(both), "{a} and {b}");
        }
        let secs = Duration::from_secs;
        assert_eq!(
            LegRule::sliding_window(5, secs(1))
                .0
                .tighter(&LegRule::sliding_window(9, secs(10))),
            LegRule::sliding_window(5, secs(10))
        );
    }
}
