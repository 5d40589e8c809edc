# docker build --build-arg VERSION=1.2.3 -t inboxd .

FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/inboxd ./cmd/inboxd

# Alpine has what the program needs around it: certificate authorities, for handlers that speak TLS, and a
# wget to ask for its health with. The program itself is static and needs no library.
FROM alpine:3.22
COPY --from=build /out/inboxd /usr/local/bin/inboxd

# A number, so that Kubernetes can see that it is not root.
USER 65532:65532

# In a container loopback reaches nobody. The operators' listener asks for a token for all but health; what of
# it can be reached from where is decided by what is published.
ENV INBOXD_LISTEN=0.0.0.0:8080 INBOXD_ADMIN_LISTEN=0.0.0.0:8081
EXPOSE 8080 8081

# Alive, not ready: while the database is away, a restart helps nobody. With a certificate on the operators'
# listener, ask it by https instead.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8081/healthz"]

ENTRYPOINT ["inboxd"]
CMD ["serve"]
