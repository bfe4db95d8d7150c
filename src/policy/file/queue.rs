//! The order and the eviction of a queue, in a file.

use super::error::PolicyFileError;
use super::table::Table;
use crate::semaphore::{Eviction, Order};

type Result<T> = std::result::Result<T, PolicyFileError>;

/// The kinds of orders, and the keys of each.
const ORDERS: [(&str, &[&str]); 5] = [
    ("fifo", &["kind"]),
    ("lifo", &["kind"]),
    ("priority", &["kind", "classes", "patience"]),
    ("round-robin", &["kind", "classes"]),
    ("shares", &["kind", "weights"]),
];

pub(super) fn order(file: Table<'_>) -> Result<Order> {
    let Some(order) = file.table("order")? else {
        return Ok(Order::Fifo);
    };
    let kinds = ORDERS.map(|(kind, keys)| (kind, (kind, keys)));
    let Some((kind, keys)) = order.choice("kind", &kinds)? else {
        return Err(order.missing("kind", "the name of an order"));
    };
    order.only(keys)?;
    let classes = || -> Result<u8> {
        let classes = order.whole("classes", 1, Order::MAX_CLASSES.into())?;
        let classes = classes.ok_or_else(|| order.missing("classes", "the number of classes"))?;
        Ok(classes as u8)
    };
    Ok(match kind {
        "priority" => Order::Priority {
            classes: classes()?,
            patience: match order.whole("patience", 1, u32::MAX.into())? {
                Some(patience) => patience as u32,
                None => return Err(order.missing("patience", "the grants to others that a class lets pass")),
            },
        },
        "round-robin" => Order::RoundRobin { classes: classes()? },
        "shares" => Order::Shares(match order.wholes("weights", 1, u32::MAX.into())? {
            Some(weights) => weights.into_iter().map(|weight| weight as u32).collect(),
            None => return Err(order.missing("weights", "a weight for each class, such as [8, 4, 1]")),
        }),
        "lifo" => Order::Lifo,
        _ => Order::Fifo,
    })
}

pub(super) fn eviction(file: Table<'_>) -> Result<Eviction> {
    let evictions = [("never", Eviction::Never), ("oldest", Eviction::Oldest)];
    Ok(file.choice("eviction", &evictions)?.unwrap_or(Eviction::Never))
}
