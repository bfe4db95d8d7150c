//! A semaphore as a leg.

use super::*;
use crate::semaphore::Semaphore;

/// A [`Semaphore`](crate::Semaphore).
///
/// ```
/// # use tollgate::policy::spec::{LegRule, SemaphoreRule};
/// let rule = LegRule::semaphore(8);
/// assert_eq!((rule.get(), rule.holds(), rule.most()), (Some(&SemaphoreRule { limit: 8 }), true, Some(8)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SemaphoreRule {
    /// Units at once.
    pub limit: usize,
}

impl Rule for SemaphoreRule {
    type Limiter = Semaphore;
    const KIND: &'static str = "semaphore";
    const HOLDS: bool = true;
    const PEAK: Option<PeakKey> = Some(PeakKey::Limit);

    fn build(&self, _: &Clock) -> Result<Semaphore, SpecError> {
        self.check()?;
        Ok(Semaphore::new(self.limit))
    }

    fn check(&self) -> Result<(), SpecError> {
        let (limit, most) = (self.limit, Semaphore::MAX_PERMITS);
        if limit > most {
            let fault = format!("{limit} was given, and 0 to {most} is allowed");
            return Err(SpecError::new("limit", fault));
        }
        Ok(())
    }

    fn text(&self) -> String {
        self.limit.to_string()
    }

    fn fixed(&self) -> String {
        String::new()
    }

    fn change(&self, semaphore: &Semaphore, to: &Self, _: Inherit) {
        semaphore.set_limit(to.limit);
        semaphore.adopt_settings();
    }

    fn tighter(&self, other: &Self) -> Self {
        let limit = self.limit.min(other.limit);
        Self { limit }
    }

    fn at(&self, step: &PeakStep) -> Self {
        let limit = step.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self {
            limit: limit.unwrap_or(self.limit),
        }
    }

    fn may_reach(semaphore: &Semaphore, most: u64) {
        semaphore.may_reach(usize::try_from(most).unwrap_or(usize::MAX));
    }

    fn available(semaphore: &Semaphore) -> Option<u64> {
        Some(semaphore.available_permits() as u64)
    }

    fn most(&self) -> Option<u64> {
        Some(self.limit as u64)
    }

    fn capacity(&self, semaphore: &Semaphore) -> Option<u64> {
        Some(semaphore.limit() as u64)
    }
}

#[cfg(feature = "policy-file")]
impl FromTable for SemaphoreRule {
    const KEYS: &'static [&'static str] = &["limit"];

    fn from_table(table: Table<'_>) -> Result<Self, PolicyFileError> {
        let limit = table.whole("limit", 0, Semaphore::MAX_PERMITS as u64)?;
        let limit = limit.ok_or_else(|| table.missing("limit", "a whole number"))?;
        Ok(Self { limit: limit as usize })
    }
}

impl LegRule {
    /// A semaphore of `limit` permits.
    pub fn semaphore(limit: usize) -> Self {
        SemaphoreRule { limit }.into()
    }
}
