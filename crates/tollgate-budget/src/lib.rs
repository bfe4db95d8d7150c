//! Budgets whose price is known afterwards: tokens and money of calls to language models, or of anything that is metered while it runs.
//!
//! A gateway that checks, then calls, then counts is overrun by the calls that start at once. Here a request *reserves* its estimate from
//! every level that counts it, all or nothing. It is *metered* while it runs, and *settled* to its true cost; what was not used comes back.
//!
//! | you want to | use |
//! |---|---|
//! | limit tokens, money, requests and calls in flight per organisation, team, user, key or model | a [`Rule`] with [`Limit`]s |
//! | count by the minute, day or month of a time zone, or in any rolling span | [`Period`] |
//! | lend what is unused, by weight | [`Rule::borrows_from`] |
//! | admit a request by its estimate | [`Budgets::account`], [`Account::reserve`] |
//! | charge a stream as it produces, and stop it at the boundary | [`Meter::extend`] |
//! | correct the charge once the bill is known | [`Meter::settle`] |
//! | wait for budget in a queue, beside a semaphore or a breaker | [`Account`] as a leg of a [`Policy`](tollgate::Policy) |
//! | learn estimates from the true costs of the past | [`Estimates`] |
//! | keep the rules in a file | `Budgets::read`, with the feature `file` |
//! | keep what is used across restarts | [`Budgets::restore`], [`Budgets::save_every`] |
//! | share budgets between processes, at a store | `SharedBudgets`, with the feature `shared` |
//! | see what is used, and which soft limits are over | [`Budgets::usage`] |
//!
//! ```
//! use tollgate::Ask;
//! use tollgate_budget::{Budgets, INPUT, Limit, MONEY, OUTPUT, Period, Rule};
//!
//! let budgets = Budgets::builder()
//!     .rule(
//!         Rule::new("organisation")
//!             .per(["organisation"])
//!             // 50 units of the currency, in nano-units.
//!             .limit(Limit::cost(MONEY, 50_000_000_000, Period::Month).time_zone("Europe/Berlin")),
//!     )
//!     .rule(
//!         Rule::new("user")
//!             .per(["organisation", "user"])
//!             .limit(Limit::cost(OUTPUT, 2_000, Period::Minute))
//!             .limit(Limit::in_flight(4)),
//!     )
//!     .build()?;
//!
//! // For each request: who asks, and the estimate.
//! let account = budgets.account(&[("organisation", "acme"), ("user", "ann")]);
//! let estimate = Ask::one().cost(INPUT, 500).cost(OUTPUT, 1_000).cost(MONEY, 3_200_000);
//! let mut meter = account.reserve(estimate).unwrap();
//!
//! // The prompt is sent: it is charged from now on, whatever happens.
//! meter.extend(MONEY, 500_000).unwrap();
//! // The stream: 1,500 tokens, 500 more than were reserved.
//! for _ in 0..15 {
//!     meter.extend(OUTPUT, 100).unwrap();
//! }
//! // Another request does not fit beside it.
//! let refused = account.reserve(estimate).unwrap_err();
//! assert_eq!((refused.rule(), refused.left()), ("user", 500));
//! assert_eq!(refused.key().last(), Some(("user", "ann")));
//!
//! // The bill, which corrects the estimate of the price.
//! meter.settle(MONEY, 4_700_000).unwrap();
//! drop(meter);
//! let organisation = account.usage().next().unwrap();
//! assert_eq!(organisation.limits().next().unwrap().used(), 4_700_000);
//! # Ok::<(), tollgate_budget::BudgetError>(())
//! ```
//!
//! # What is guaranteed
//! - **All or nothing**: a change is made at all levels of a request at one instant. A refusal leaves no trace, and no other request sees
//!   half of a change.
//! - **Hard limits**: what is used and reserved in a period exceeds a hard limit by at most the largest single charge
//!   ([`Meter::extend`], [`Meter::settle`]) of each running request, if every stream stops when it is told to. Of a limit that is
//!   [lent](Rule::borrows_from) that holds for what is used.
//! - **Conservation**: in each period, what was charged is what is used, and what running requests hold. What was given back counts for
//!   nothing.
//! - **Periods**: a reservation belongs to the period in which it starts. Settled after the period's end, it changes nothing in the
//!   next one.
//! - **Bounded memory**: a flood of unknown keys shares one budget for each rule: see [`Budgets`].
//!
//! # What is not
//! What an upstream reveals only at the end (hidden tokens, its price) can be estimated, settled and reported, and not prevented. Counters
//! live in this process: one that starts anew begins with those of its last [snapshot](Budgets::save_every), if it has one.
//!
//! # Cost
//! A change locks the levels of its account, one after the other. A level is some 100 bytes and 100 for each limit, and 256 more for one of
//! a rolling span. A known descriptor is found, and its request admitted, without an allocation, if at most 8 rules match it.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod account;
mod budgets;
mod directory;
mod estimate;
mod exceeded;
#[cfg(feature = "file")]
mod file;
mod lend;
mod level;
mod meter;
mod period;
mod rule;
#[cfg(feature = "shared")]
mod shared;
mod shim;
mod snapshot;

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
use tollgate_conformance::inputs as laws;

pub use account::{Account, Charge};
pub use budgets::{Budgets, BudgetsBuilder, LevelUsage, LimitUsage};
pub use estimate::{Estimates, EstimatesBuilder, EstimatesError};
pub use exceeded::Exceeded;
#[cfg(feature = "file")]
#[cfg_attr(docsrs, doc(cfg(feature = "file")))]
pub use file::BudgetFileError;
pub use meter::Meter;
pub use rule::{BudgetError, INPUT, Limit, MONEY, Measure, OUTPUT, Period, Rule};
#[cfg(feature = "shared")]
#[cfg_attr(docsrs, doc(cfg(feature = "shared")))]
pub use shared::{SharedAccount, SharedBudgets, SharedBudgetsBuilder, SharedBudgetsError, SharedExceeded, SharedMeter};
pub use snapshot::{BudgetSaver, SnapshotError};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
