//! (to be written)

/// Tells a handler that its client has gone. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gone {}

impl Gone {
    /// Resolves when the client has closed the connection.
    pub async fn wait(&self) {
        std::future::pending().await
    }
}
