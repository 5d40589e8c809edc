// Package inbox is the domain of inboxd: messages, deliveries, the states a delivery moves through,
// backoff, routing, and the few errors that tell a caller what it can do. It knows neither HTTP nor
// SQL and imports the standard library alone.
package inbox
