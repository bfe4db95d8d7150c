//! The order of a queue, in a file: a table with a kind.

use crate::file::{Node, read_kind, write_kind};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tollgate::Order;

/// An order and its numbers.
#[derive(Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Order", tag = "kind")
)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum OrderSpec {
    Fifo {},
    Lifo {},
    Priority {
        classes: Within<32>,
        patience: Within<{ u32::MAX }>,
    },
    RoundRobin {},
    Shares {
        weights: Vec<Within<{ u32::MAX }>>,
    },
}

/// A number from one on.
#[derive(Clone, Copy, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub(crate) struct Within<const MOST: u32>(u32);

impl<'de, const MOST: u32> Deserialize<'de> for Within<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = u64::deserialize(deserializer)?;
        match u32::try_from(given) {
            Ok(number) if (1..=MOST).contains(&number) => Ok(Self(number)),
            _ => {
                let allowed = format!("a whole number of 1 to {MOST}");
                Err(D::Error::invalid_value(Unexpected::Unsigned(given), &allowed.as_str()))
            }
        }
    }
}

pub(crate) fn serialize<S: Serializer>(order: &Order, serializer: S) -> Result<S::Ok, S::Error> {
    let spec = match order {
        Order::Lifo => OrderSpec::Lifo {},
        Order::Priority { classes, patience } => OrderSpec::Priority {
            classes: Within((*classes).into()),
            patience: Within(*patience),
        },
        Order::RoundRobin => OrderSpec::RoundRobin {},
        Order::Shares(weights) => OrderSpec::Shares {
            weights: weights.iter().copied().map(Within).collect(),
        },
        _ => OrderSpec::Fifo {},
    };
    write_kind(&spec, serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Order, D::Error> {
    let node = Node::deserialize(deserializer)?;
    Ok(match read_kind(node, "kind, ").map_err(D::Error::custom)? {
        OrderSpec::Fifo {} => Order::Fifo,
        OrderSpec::Lifo {} => Order::Lifo,
        OrderSpec::Priority { classes, patience } => Order::Priority {
            classes: classes.0 as u8,
            patience: patience.0,
        },
        OrderSpec::RoundRobin {} => Order::RoundRobin,
        OrderSpec::Shares { weights } => Order::Shares(weights.into_iter().map(|weight| weight.0).collect()),
    })
}
