//! The number of workers of a pool.

use super::error::PoolError;
use std::ops::{RangeInclusive, RangeToInclusive};

/// The most workers that a pool may have: 65,536.
pub const MAX_WORKERS: usize = 1 << 16;

/// The number of workers: a number, or a range whose minimum is always running.
///
/// ```
/// # use tollgate::WorkerPool;
/// let fixed = WorkerPool::builder().workers(2).build()?;
/// assert_eq!((fixed.stats().threads, fixed.stats().limit), (2, 2));
/// let elastic = WorkerPool::builder().workers(1..=4).build()?;
/// assert_eq!((elastic.stats().threads, elastic.stats().limit), (1, 4));
/// # Ok::<(), tollgate::pool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Workers(RangeInclusive<usize>);

impl From<usize> for Workers {
    fn from(workers: usize) -> Self {
        Self(workers..=workers)
    }
}

impl From<RangeInclusive<usize>> for Workers {
    fn from(range: RangeInclusive<usize>) -> Self {
        Self(range)
    }
}

impl From<RangeToInclusive<usize>> for Workers {
    fn from(range: RangeToInclusive<usize>) -> Self {
        Self(1..=range.end)
    }
}

impl Workers {
    pub(super) fn most(&self) -> usize {
        *self.0.end()
    }

    pub(super) fn check(self) -> Result<(usize, usize), PoolError> {
        let (least, most) = self.0.into_inner();
        if least == 0 || least > most || most > MAX_WORKERS {
            return Err(PoolError::Workers { least, most });
        }
        Ok((least, most))
    }
}
