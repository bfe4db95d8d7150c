#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]

mod file;
mod kind;
mod live;
mod set;
mod source;
mod spec;

pub use file::{ConfigFile, Format, MAX_FILE, load, parse};
#[cfg(feature = "resilience")]
#[cfg_attr(docsrs, doc(cfg(feature = "resilience")))]
pub use kind::{AdaptiveSpec, BreakerSpec, LawSpec};
pub use kind::{Kinds, LegKind};
pub use live::{LegStatus, Reload, ReloadableLegs, ReloadablePolicy};
pub use set::{KeyedPolicies, PolicySet};
#[cfg(feature = "watch")]
#[cfg_attr(docsrs, doc(cfg(feature = "watch")))]
pub use source::WatchedFile;
pub use source::{FileSource, LastGood, Source};
pub use spec::{ConfigError, KeyTier, KeyedSpec, LegSpec, PartitionsSpec, PolicySetSpec, PolicySpec, ShareSpec, When};
