//! (to be written)
pub struct Config {}
