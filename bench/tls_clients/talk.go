// A round trip with amqp091-go over TLS: talk HOST PORT CA CERTIFICATE KEY, the last two empty for none.
// With a certificate it logs in by it (EXTERNAL). Prints "done" when every message was confirmed and came back.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	if err := talk(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("done")
}

func talk(host, port, ca, certificate, key string) error {
	pem, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	settings := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: host}
	settings.RootCAs.AppendCertsFromPEM(pem)
	options := amqp.Config{TLSClientConfig: settings, SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "guest"}}}
	if certificate != "" {
		own, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return err
		}
		settings.Certificates = []tls.Certificate{own}
		options.SASL = []amqp.Authentication{&amqp.ExternalAuth{}}
	}
	connection, err := amqp.DialConfig("amqps://"+host+":"+port, options)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	queue, err := channel.QueueDeclare("", false, false, true, false, nil)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	bodies := [][]byte{[]byte("one"), bytes.Repeat([]byte("t"), 60_000), []byte("three")}
	for _, body := range bodies {
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}
		confirm, err := channel.PublishWithDeferredConfirmWithContext(limit, "", queue.Name, false, false, message)
		if err != nil {
			return err
		}
		if acked, err := confirm.WaitContext(limit); err != nil || !acked {
			return errors.Join(errors.New("not confirmed"), err)
		}
	}
	for _, body := range bodies {
		message, ok, err := channel.Get(queue.Name, false)
		if err != nil || !ok || !bytes.Equal(body, message.Body) {
			return errors.Join(errors.New("another message"), err)
		}
		if err := message.Ack(false); err != nil {
			return err
		}
	}
	return nil
}
