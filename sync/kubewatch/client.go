package kubewatch

import "k8s.io/client-go/rest"

// ClientConfig reads the kubeconfig of config as a Source does, for those who only want to look whether it is good:
// the certificates that it names are in it, and it connects to nothing. The error says what to write instead.
func ClientConfig(config Config) (*rest.Config, error) {
	read, err := loadKubeconfig(config)
	if err != nil {
		return nil, err
	}
	return read.config, nil
}
