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
        self.0.facts().kind
    }

    /// The rule, if it is of this type.
    pub fn get<R: Rule>(&self) -> Option<&R> {
        self.0.as_any().downcast_ref()
    }

    /// True when units are held until the work ends: see [`Rule::HOLDS`].
    pub fn holds(&self) -> bool {
        self.0.facts().holds
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
        self.0.facts().peak
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
pub(in crate::policy) trait LegLimiter: Erased {
    fn as_any(&self) -> &dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<L: Limiter + 'static> LegLimiter for L {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Writes the object-safe form of a [`Rule`]: each method, and its body for a rule of type `R`.
macro_rules! any_rule {
    ($this:ident; $(fn $name:ident($($arg:ident: $of:ty),*) -> $result:ty { $body:expr })*) => {
        /// The object-safe form of a [`Rule`]. A limiter is that of a leg of this rule.
        pub(in crate::policy) trait AnyRule: fmt::Debug + Send + Sync {
            $(fn $name(&self $(, $arg: $of)*) -> $result;)*
        }

        impl<R: Rule> AnyRule for R {
            $(fn $name(&self $(, $arg: $of)*) -> $result {
                let $this = self;
                let _ = $this;
                $body
            })*
        }
    };
}
any_rule! { this;
    fn as_any() -> &dyn Any { this }
    fn facts() -> Facts {
        Facts {
            id: TypeId::of::<R>(),
            kind: R::KIND,
            holds: R::HOLDS,
            peak: R::PEAK,
            crossing: R::CROSSING,
            words: <R::Limiter as Limiter>::Ticket::WORDS,
        }
    }
    fn is_equal(other: &LegRule) -> bool { other.get::<R>() == Some(this) }
    fn build(clock: &Clock) -> Result<Box<dyn LegLimiter>, SpecError> { Ok(Box::new(R::build(this, clock)?)) }
    fn check() -> Result<(), SpecError> { R::check(this) }
    fn text() -> String { R::text(this) }
    fn fixed() -> String { R::fixed(this) }
    fn change(limiter: &dyn Any, to: &LegRule, inherit: Inherit) -> () {
        if let Some(to) = to.get() { R::change(this, of_leg::<R>(limiter), to, inherit) }
    }
    fn tighter(other: &LegRule) -> LegRule {
        other.get().map_or(other.clone(), |other| R::tighter(this, other).into())
    }
    fn reset(limiter: &dyn Any) -> () { R::reset(of_leg::<R>(limiter)) }
    fn at(step: &PeakStep) -> LegRule { R::at(this, step).into() }
    fn may_reach(limiter: &dyn Any, most: u64) -> () { R::may_reach(of_leg::<R>(limiter), most) }
    fn available(limiter: &dyn Any) -> Option<u64> { R::available(of_leg::<R>(limiter)) }
    fn most() -> Option<u64> { R::most(this) }
    fn capacity(limiter: &dyn Any) -> Option<u64> { R::capacity(this, of_leg::<R>(limiter)) }
    fn per_second() -> Option<f64> { R::per_second(this) }
    fn rate(limiter: &dyn Any) -> Option<f64> { R::rate(this, of_leg::<R>(limiter)) }
    fn is_unlimited() -> bool { R::is_unlimited(this) }
}

/// What does not depend on the numbers of a rule.
pub(in crate::policy) struct Facts {
    /// The type, by which kinds of one name are told apart.
    pub(in crate::policy) id: TypeId,
    pub(in crate::policy) kind: &'static str,
    pub(in crate::policy) holds: bool,
    pub(in crate::policy) peak: Option<PeakKey>,
    pub(in crate::policy) crossing: Inherit,
    /// The words of the limiter's ticket.
    pub(in crate::policy) words: usize,
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
