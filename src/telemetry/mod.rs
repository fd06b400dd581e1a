//! (to be written)
pub struct Metrics {}
