//! Policies as data: files, kinds, sets, sources, and reload.

mod embed;
mod file;
mod inherit;
mod kinds;
mod many;
mod reload;
mod set;
mod source;
