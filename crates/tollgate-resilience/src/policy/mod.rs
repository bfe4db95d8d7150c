#![doc = include_str!("README.md")]

mod adaptive;
mod adaptive_rate;
mod breaker;

pub use adaptive::{AdaptiveLaw, AdaptiveRule};
pub use adaptive_rate::AdaptiveRateRule;
pub use breaker::BreakerRule;

#[cfg(feature = "policy-file")]
use tollgate::policy::file::Kinds;

/// The kinds of legs of [`tollgate`] and of this crate, to read policy files with.
///
/// ```
/// # use tollgate::policy::file::Format;
/// # use tollgate::policy::spec::PolicySpec;
/// # use tollgate::{LimiterExt, ManualClock};
/// let text = "[[leg]]\nname = 'in flight'\nkind = 'adaptive'\nlimit = 10\nceiling = 40\n";
/// let spec: PolicySpec = tollgate_resilience::policy::kinds().parse(text, Format::Toml)?;
/// let policy = spec.build(&ManualClock::new())?;
/// assert!(policy.try_admit(10).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// With kinds of your own as well: `kinds().with::<MyRule>()`. With the kinds of several crates: [`Kinds::with`] takes each rule.
#[cfg(feature = "policy-file")]
#[cfg_attr(docsrs, doc(cfg(feature = "policy-file")))]
#[must_use]
pub fn kinds() -> Kinds {
    Kinds::standard()
        .with::<BreakerRule>()
        .with::<AdaptiveRule>()
        .with::<AdaptiveRateRule>()
}
